"""Whether a vehicle may install an image: what the ledger says of it, by proof, whatever the metadata says.

Threat: every key of the metadata is stolen, and an image is shown to one car alone; a Director sends an image to cars
that its phase does not reach, or goes on after the campaign stopped; a node keeps back that an image was withdrawn.

Invariant: a vehicle installs what is a live release (`require_live`) and is spread by a campaign that runs and reaches
this vehicle. It reads both rows under a checkpoint that it accepted, which others have seen too, and which is no older
than `head_age_max_s`: so an image must show itself to everybody before any car takes it, and a withdrawal reaches all
cars within that time. The topics are those that the vehicle was built to trust, and no message names them.
"""

from __future__ import annotations

from tallystick.errors import Refused
from tallystick.ledger.contracts.firmware import CAMPAIGNS, CampaignRow
from tallystick.ledger.contracts.state import RowReader
from tallystick.trust.campaign import is_member

Named = tuple[bytes, bytes]  # the token of a topic, and an image or a campaign there


def require_reached(read: RowReader, campaign: Named, vehicle: bytes) -> CampaignRow:
    """A campaign that runs and reaches this vehicle. Raises `Refused`, with the reason why not.

    `read` brings rows by proof; `vehicle` is the vehicle's own principal.
    """
    found, name = read(CAMPAIGNS(*campaign)), campaign[1].hex()
    if found is None:
        raise Refused(f"campaign {name} does not exist", reason="no-campaign")
    if not found.share:
        raise Refused(f"campaign {name} was stopped", reason="campaign-stopped")
    if not is_member(campaign[1], vehicle, found.share):
        raise Refused(f"campaign {name} has not reached this vehicle", reason="not-in-phase")
    return found


def require_spread(read: RowReader, release: Named, campaign: Named, vehicle: bytes) -> None:
    """Raise `Refused` unless such a campaign spreads this image."""
    if [*release] not in require_reached(read, campaign, vehicle).images:
        raise Refused(f"campaign {campaign[1].hex()} does not spread image {release[1].hex()}", reason="no-campaign")
