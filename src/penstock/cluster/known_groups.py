"""What is set for groups, as the image has it: so every broker of a cluster hears of a change made at any of them."""

from collections.abc import Mapping

from penstock.cluster.image import Image
from penstock.cluster.watcher import Watcher
from penstock.engine.groups.group_configs import Settings
from penstock.errors import Code, PenstockError
from penstock.ports.metadata import MetadataStore

_EFFECT_S = 30.0


class KnownGroups:
    """See the module's text; the verbs are those of `engine.groups.group_configs.Known`."""

    def __init__(self, image: Image, watcher: Watcher) -> None:
        self._image = image
        self._watcher = watcher

    @property
    def given(self) -> Mapping[str, Settings]:
        return self._image.groups

    async def load(self, store: MetadataStore) -> None:
        return None  # the image has it before this

    def check_change(self) -> None:
        self._image.check_attaches("groups can have no settings of their own")

    async def until_known(self, group_id: str, settings: Settings, revision: int) -> None:
        if not await self._watcher.until(lambda: self._image.revision >= revision, _EFFECT_S):
            raise PenstockError(
                Code.TIMED_OUT,
                f"group {group_id!r} has new settings, but this broker does not go by them yet after {_EFFECT_S:g} s; "
                "ask again",
            )
