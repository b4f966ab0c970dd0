"""A notebook's shell on a whole cluster, as in tests/service/notebook."""

from ...service.notebook.conftest import cluster as cluster
from ...service.notebook.conftest import hub_url as hub_url
from ...service.notebook.conftest import notebook as notebook
from ...service.notebook.conftest import service as service
