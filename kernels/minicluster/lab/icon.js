// The icon of the sidebar and of the launcher: a falling curve over three machines, in the theme's colours.

export const ICON = `<svg xmlns="http://www.w3.org/2000/svg" width="16" viewBox="0 0 22 22">
  <g class="jp-icon3" fill="#616161">
    <rect x="2" y="15" width="5" height="5" rx="1"/><rect x="8.5" y="15" width="5" height="5" rx="1"/>
    <rect x="15" y="15" width="5" height="5" rx="1"/>
    <path d="M2 2h1.6v1.2c1.2 4.6 5 7 16.4 7.2v1.6C9.6 11.8 5.2 9.8 3.6 6.6V12H2z"/>
  </g>
</svg>`;
