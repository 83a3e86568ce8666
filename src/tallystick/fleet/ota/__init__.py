"""Updates over the air: what a vehicle may install, from whom it comes, and how it lands whole or not at all.

Signed metadata, sealed objects (`objects/`) and proofs of the ledger come in; out go installed images and reports of
what runs. From the fleet's side to the ECU's:

    fleetfile    what everybody of a fleet's updates is told, who may do what, and how a vehicle is enrolled
    repository   the metadata of Director and Image repository as they are written
    releasing    the Image repository at work
    director     what the Director decides; `directing` brings what there is to know, and carries out
    counting     how manifests become the counts of a campaign
    mirrors      the servers of images, and which of them is the seeder
    record       the release record: who may open an image, for which hardware, and what it needs
    metadata     the same metadata as a vehicle reads them
    released     what the ledger must say of an image, whatever the metadata say
    judging      what a vehicle, or an ECU, holds an offer to before anything is fetched
    waiting      why a bundle that is whole does not go in now
    vehicle      the primary: a bundle of images goes in whole or not at all
    ecu          one unit: it fetches into the slot that does not run, tries, confirms or returns
    landing      where chunks go that it fetched
    delta        patches, and chunks that the old image has already
    slots        two images of an ECU, of which one always boots
    manifest     what runs, signed by every ECU and by the vehicle
    diagnosis    how it is, likewise
    car          a whole vehicle that runs, over disks, servers and topics; `carfolder` is what it was made with
    stick        the same files in a folder, for a vehicle that is offline
"""
