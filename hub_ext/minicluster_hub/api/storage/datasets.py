"""Data sets: users push, list and remove them; the nodes' data set agents fetch them."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection

from minicluster.wire import (
    BlobInfo,
    DataAgentOrders,
    DataAgentReport,
    DataSet,
    DataSetEarlier,
    DataSetList,
    DataUse,
    MissingPieces,
    SaveDataSet,
    StorageKind,
)
from minicluster_hub.api.storage.blobs import UserUpload
from minicluster_hub.datasets.node_tracker import DATA
from minicluster_hub.jobs.records import DataSetRecord, DataSetVersion
from minicluster_hub.storage.blobs import BlobFiles
from minicluster_hub.web.auth import UserHandler
from minicluster_hub.web.base import ServiceHandler
from minicluster_hub.web.errors import ApiError
from minicluster_hub.web.files import FileReply
from minicluster_hub.web.long_polling import HeldHandler
from minicluster_hub.web.route import BYTES, OWNER, OnFollower, Query, Scope, Who, route

_NAME = {"data_name": r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"}


class _DataHandler(UserHandler):
    """Base of handlers that answer with data sets."""

    def message(self, record: DataSetRecord, versions: Collection[DataSetVersion] = ()) -> DataSet:
        use = DataUse(name=record.name, owner=record.owner, manifest_sha256=record.manifest_sha256)
        nodes = (node.name for node in self.context.status_cache.node_views())
        return DataSet(
            name=record.name,
            owner=record.owner,
            manifest_sha256=record.manifest_sha256,
            files=record.files,
            size_bytes=record.size_bytes,
            shared=record.shared,
            created_at=record.created_at,
            nodes=self.context.data_set_tracker.nodes_with(use, nodes),
            earlier=tuple(
                DataSetEarlier(
                    manifest_sha256=one.manifest_sha256, size_bytes=one.size_bytes, read_at=one.read_at
                )
                for one in versions
                if one.manifest_sha256 != record.manifest_sha256
            ),
        )


class DataSetsHandler(_DataHandler):
    @route(
        "api/data",
        "The user's data sets, and those that others share",
        scope=Scope.READ,
        answer=DataSetList,
        query=(OWNER,),
    )
    def get(self) -> None:
        records = self.context.store.datasets.visible(self.requested_owner())
        versions: defaultdict[tuple[str, str], list[DataSetVersion]] = defaultdict(list)
        for one in self.context.store.datasets.versions():
            versions[one.owner, one.name].append(one)
        sets = (self.message(record, versions[record.owner, record.name]) for record in records)
        self.reply(DataSetList(sets=tuple(sets)))


class DataSetHandler(_DataHandler):
    """A data set of the user; admins may also remove those of others."""

    @route(
        "api/data/sets/{data_name}",
        "Make a data set, or a new version of one, from uploaded pieces",
        scope=Scope.SUBMIT,
        body=SaveDataSet,
        answer=DataSet,
        parts=_NAME,
    )
    async def put(self, data_name: str) -> None:
        ask, files = self.parse(SaveDataSet), self.context.data_sets
        record = await files.save(self.user.name, data_name, ask.manifest_sha256, ask.shared)
        self.reply(self.message(record))

    @route(
        "api/data/sets/{data_name}",
        "Remove a data set; jobs that use it still have it",
        scope=Scope.SUBMIT,
        status=204,
        query=(Query("owner", "string", "the data set's owner (for admins)"),),
        parts=_NAME,
    )
    def delete(self, data_name: str) -> None:
        owner = self.get_query_argument("owner", self.user.name)
        if owner != self.user.name:
            self.require(Scope.ADMIN)
        if not self.context.data_sets.remove(owner, data_name):
            message = f"there is no data set {data_name} of {'yours' if owner == self.user.name else owner}"
            raise ApiError(404, "unknown_data_set", message, "%distribute data lists all data sets.")
        self.set_status(204)


class MissingHandler(UserHandler):
    @property
    def body_limit_bytes(self) -> int:
        return self.context.limits.report_bytes

    @route(
        "api/data/missing",
        "Which pieces a push must send",
        scope=Scope.SUBMIT,
        body=MissingPieces,
        answer=MissingPieces,
    )
    async def post(self) -> None:
        ask = self.parse(MissingPieces)
        missing = await self.context.data_sets.missing(self.user.name, ask.pieces)
        self.reply(MissingPieces(pieces=missing))


class PieceHandler(UserUpload):
    """Pieces. Only a user who sent the bytes has the piece; knowing its hash grants nothing."""

    kind = StorageKind.DATA

    @route(
        "api/data/pieces/{sha256}",
        "Store a piece, or a manifest",
        scope=Scope.SUBMIT,
        body=BYTES,
        answer=BlobInfo,
    )
    async def put(self, sha256: str) -> None:
        await self.receive(sha256)

    def known_bytes(self, sha256: str) -> int | None:
        piece = BlobInfo(sha256=sha256, size_bytes=0)
        lacks = self.context.store.datasets.lacking(self.owner, (piece,), self.context.clock())
        return None if lacks else self.size_on_disk(sha256)

    def enter(self, info: BlobInfo) -> None:
        self.context.store.datasets.add_piece(self.owner, info, self.context.clock())
        if self.files.size(info.sha256) is None:
            raise ApiError(503, "piece_swept", "the piece was removed while it came", "send it again")

    @property
    def files(self) -> BlobFiles:
        return self.context.data_sets.files

    @property
    def body_limit_bytes(self) -> int:
        return self.context.limits.piece_bytes

    @property
    def body_name(self) -> str:
        return "the piece"


class DataAgentHandler(ServiceHandler):
    """Base of handlers for data set agents: the token names its nodes, which must be in the cluster."""

    who = Who.DATA_AGENT
    on_follower = OnFollower.REFER
    nodes: frozenset[str]

    @property
    def body_limit_bytes(self) -> int:
        return self.context.limits.report_bytes

    async def identify(self) -> None:
        scheme, _, token = self.request.headers.get("Authorization", "").partition(" ")
        self.nodes = self.context.data_set_tracker.tokens.nodes(token.strip())
        if scheme.lower() != "keeper" or not self.nodes:
            raise ApiError(401, "not_authenticated", "want the header `Authorization: keeper <the token>`")
        self.check_nodes({node.name for node in self.context.status_cache.node_views()}, self.nodes)

    def check_nodes(self, own: Collection[str], named: Collection[str]) -> None:
        """Raise ApiError (403) unless all of the nodes named are among these."""
        for node in named:
            if node not in own:
                raise ApiError(403, "not_your_node", f"this token is not for the node {node[:80]}")


class DataAgentReportHandler(DataAgentHandler):
    """Takes the report of a data set agent, which may be repeated."""

    @route(
        "api/data-agents/report",
        "The report of a data set agent",
        body=DataAgentReport,
        status=204,
        formerly="api/keepers/report",
    )
    def post(self) -> None:
        report = self.parse(DataAgentReport)
        self.check_nodes(self.nodes, report.nodes)
        self.context.machines.receive(report.nodes, report.readings)
        if self.context.data_set_tracker.receive(report):
            self.context.reconciler.wake()
        self.set_status(204)


class DataAgentOrdersHandler(DataAgentHandler, HeldHandler):
    """Answers when the data sets that an agent's nodes need have changed, or after `orders_hold_s`."""

    @route(
        "api/data-agents/orders",
        "The data sets that an agent's nodes need; the answer is held while `have` is the newest version",
        answer=DataAgentOrders,
        query=(
            Query("have", "string", "the version that the agent has"),
            Query("node", "string", "a node of the agent; may be repeated"),
        ),
        formerly="api/keepers/orders",
    )
    async def get(self) -> None:
        tracker, nodes = self.context.data_set_tracker, frozenset(self.get_query_arguments("node"))
        self.check_nodes(self.nodes, nodes)
        self.reply(await self.held(lambda: tracker.orders(nodes), tracker.notifier, DATA))


class DataAgentPieceHandler(DataAgentHandler, FileReply):
    """A piece, or a manifest, of a data set that the agent's nodes need."""

    @route(
        "api/data-agents/pieces/{sha256}",
        "A piece, or a manifest",
        answer=BYTES,
        query=(Query("doubted", "string", "any text: it came damaged, so check the file on disk, too"),),
        formerly="api/keepers/pieces/{sha256}",
    )
    async def get(self, sha256: str) -> None:
        sets, wanted = self.context.data_sets, self.context.data_set_tracker.manifests(self.nodes)
        if not self.context.store.datasets.holds(wanted, sha256):
            raise ApiError(403, "not_your_piece", f"no node of this token needs the piece {sha256}")
        path = sets.files.path(sha256)
        doubted = self.get_query_argument("doubted", "")
        if not path.is_file() or (doubted and await asyncio.to_thread(sets.damaged, sha256)):
            message = f"the job service has lost the piece {sha256}"
            raise ApiError(404, "unknown_piece", message, "Push the data set again.")
        await self.send_file(path)
