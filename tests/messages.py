"""Messages of the product, or significant parts of them, that more than one test file expects.

Comments name the modules with the text. Braces are fields of str.format.
"""

# The panel, and what a terminal shows of it.
RUNNING = "Running on {ranks} ranks"  # display/view.py
SUCCEEDED = "Succeeded on {ranks} ranks"  # display/view.py
STOPPED = "Stopped on {ranks} ranks"  # display/view.py
NEXT_ATTEMPT = "--- attempt {number} ---"  # display/view.py
FAIR_SHARE_NOW = "would be your fair share now"  # display/queue.py; on the page Jobs, too

# %distribute connect.
CONNECTED_TO = "Connected to"  # client/connect.py
CONNECTED = CONNECTED_TO + " {hub} as {user}."
MAY_DO_MORE = "may do more"  # client/connect.py
TOKEN_MAY_NOT = "This token may not do that"  # client/connection.py
CANNOT_PROVE = "cannot prove who it is"  # client/certificates.py
NOTHING_SENT = "Nothing was sent"  # client/certificates.py
NO_HTTPS = "does not speak https"  # client/reach.py
NOTHING_LISTENS = "nothing listens at port {port}"  # client/reach.py
NO_JUPYTERHUB = "There is no JupyterHub at"  # client/reach.py
NO_TORCH_HERE = "No torch here"  # capture/versions.py

# Results and files.
RANKS_DIFFER = "between ranks; rank 0's came back (--gather {names} brings all)"  # runtime/rank/values.py
CHANGED_HERE = "`{name}` changed here while job {job} ran"  # changes/applying.py
RESULT_LEFT = "The result could not be brought back"  # wire/artifacts.py
SNAPSHOT_LEFT = "A snapshot could not be brought into the job's storage"  # runtime/agent/snapshots.py
FILES_LEFT = "Left in the output folder on {node}: "  # wire/artifacts.py
NO_TIME_LEFT = "there was no time: the job was stopped"  # runtime/agent/artifacts.py

# Why a job does not get on, and why it failed.
ALL_MAKE_PROGRESS = "All ranks make progress"  # diagnosis/why.py
CELL_IS_OVER = "cell is over on rank {rank}, which never reached the"  # diagnosis/why.py
DIFFERENT_PLACES = "Ranks wait in different places:"  # diagnosis/why.py
STOPPED_BY_SIGNAL = "stopped by a signal (SIGSTOP, or a debugger)"  # diagnosis/why.py
NODE_AWAY = "The node of {ranks} does not answer"  # diagnosis/why.py
BACKWARD_PASS = "backward pass (the all_reduce of its gradients)"  # diagnosis/rank_location.py
SAME_COLLECTIVES = "same collectives in the same order"  # diagnosis/why.py
WAITED_IN_VAIN = "waited in vain"  # jobs/final_error.py

# Why a job waits or is refused, and why a server is.
AHEAD_OF_IT = "ahead of it in the queue"  # scheduling/reasons.py
UNTIL_JOB_ENDS = "until job {job} ends"  # scheduling/reasons.py
MAKES_ROOM = "makes room for job {job}"  # scheduling/scheduler.py
CAME_EARLIER = "came earlier"  # scheduling/standing.py
RESERVED_FOR_GROUP = "reserved for group"  # scheduling/reservations/reservation.py
OVER_YOUR_SLOTS = "over your quota of {quota} slots at once: {used} in use"  # scheduling/quotas.py
# scheduling/quotas.py
OVER_THE_GROUPS_SLOTS = "over the quota of group {group} of {quota} slots at once: {used} in use"
OVER_YOUR_JOBS = "over your quota of {quota} jobs at once: {running} run"  # scheduling/quotas.py
OVER_YOUR_HOURS = "over your quota of {quota} GPU-hours in 30 days: {used} are used"  # scheduling/limits.py
MORE_THAN_YOUR_SLOTS = "the job needs {slots} slots; your quota is {quota} at once"  # scheduling/admission.py
THIS_CLUSTER_HAS = "this cluster has {count}"  # scheduling/admission.py
A_NUMBER_AT_LEAST_0 = "must be a number, at least 0"  # scheduling/limits.py
HOME_IS_ON_NODE = "home of {user} is on node {node}"  # scheduling/servers.py
NO_NODE_HAS = "no node has 1 GPU free"  # scheduling/servers.py
TIME_IS_OVER = "whose time is over"  # scheduling/holders.py
NOT_ALL_FREE = "not all free"  # scheduling/allocation/free_slots.py

# What is wrong with a custom policy.
NO_FUNCTION_PLAN = "has no function plan"  # scheduling/own.py
WHICH_IS_NO_PLAN = "which is not a Plan"  # scheduling/own.py
PLANNED_TWICE = "it planned job {job} twice"  # scheduling/own.py
LEFT_OUT_JOB = "it left out job"  # scheduling/own.py
NO_SUCH_POLICY = "there is no policy '{name}'"  # scheduling/policies/__init__.py
MAY_START_NO_PROCESS = "may start no process"  # policy/confine.py
TOOK_LONGER = "it took longer than {limit} s"  # policy/sandbox_child.py
ANSWER_IS_NO_PLAN = "its answer is no plan"  # policy/custom_policy.py
PROCESS_ENDED = "its process ended"  # policy/custom_policy.py
CANNOT_BE_ACTIVATED = "cannot be activated: "  # policy/active_policy.py
TAKEN_BACK = "was taken back: "  # policy/active_policy.py

# Images and data sets.
NO_SUCH_IMAGE = "There is no image"  # minicluster_spawner/options.py
COULD_NOT_GET_IMAGE = "could not get the image"  # engines/swarm/exit_reasons.py; of servers: refusals.py
IMAGE_WAITS = "it waits for an administrator to allow it"  # images/catalogue.py
IMAGE_WAS_RETIRED = "it was retired"  # images/catalogue.py
RETIRED_MEANWHILE = "was retired while the job waited"  # jobs/lost_tasks.py
IS_PUBLISHED = "is published, with"  # publishing/commands.py
RANKS_LACK = "ranks do not have"  # publishing/site.py
INSTALLED_FROM_HERE = "was installed from this machine"  # publishing/site.py
NO_SUCH_DATA_SET = "there is no data set {name}"  # datasets/manager.py
COULD_NOT_FETCH = "could not fetch the data set {name}: "  # datasets/node_tracker.py
CACHE_HOLDS = "the node's cache holds at most"  # runtime/node/cache.py
IN_USE_BY_OTHERS = "are in use by other jobs"  # runtime/node/cache.py
MANY_FILES = "files, 4 KB for each at least"  # runtime/node/cache.py

# The cluster and its database.
READY = "Minicluster is ready: "  # cluster/commands/up.py
NOTHING_CHANGED = "nothing was changed"  # cluster/commands/up.py
NO_CLUSTER_HERE = "no cluster here"  # cluster/commands/up.py and dispatch.py
WENT_UNSEEN = "went unseen"  # cluster/eviction/rules.py
FILLED_MOST_OF_IT = "your server filled most of it"  # minicluster_spawner/templates/server_options.html
CHECK_ITS_URL = "check its URL"  # store/schema.py
