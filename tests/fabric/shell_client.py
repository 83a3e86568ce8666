"""Programs a switch with p4runtime-shell, in that package's own environment: address, device, p4info and program on the
command line. Prints what it read back and which packet came in."""

import sys

import p4runtime_sh.shell as shell

address, device, p4info, program = sys.argv[1:]
shell.setup(
    device_id=int(device),
    grpc_addr=address,
    election_id=(0, 50),
    config=shell.FwdPipeConfig(p4info, program),
    verbose=False,
)
group = shell.MulticastGroupEntry(4)
group.add(2, 1).add(3, 1)
group.insert()
for port, after in (("2", "0x22"), ("3", "0x33")):
    entry = shell.TableEntry("next_labels")(action="relabel")
    entry.match["epoch"], entry.match["label"], entry.match["port"] = "6", "0xabcdef", port
    entry.action["next"] = after
    entry.insert()
entry = shell.TableEntry("publications")(action="multicast")
entry.match["epoch"], entry.match["label"] = "6", "0xabcdef"
entry.action["group"] = "4"
entry.insert()
try:
    entry.insert()
except Exception as error:
    print("again:", "ALREADY_EXISTS" in str(error))
names = ("publications", "next_labels")
print("read:", [sum(1 for _ in shell.TableEntry(name).read()) for name in names])
print("group:", [copy.egress_port for one in shell.MulticastGroupEntry(4).read() for copy in one.replicas])
out = shell.PacketOut(bytes.fromhex("030000009004020000009004900377"))
out.metadata["egress_port"] = "1"
out.send()
print("ready", flush=True)
sys.stdin.readline()  # until frames have passed
counted = shell.TableEntry("publications")
_ = counted.counter_data  # asks for it
print("counted:", [entry.counter_data.packet_count for entry in counted.read()])
for packet in shell.PacketIn().sniff(timeout=5):
    print("in:", packet.packet.payload.hex(), packet.packet.metadata[0].value.hex(), flush=True)
    break
shell.teardown()
