"""SHA-256 of many short messages at once: sixteen of them side by side, one in each lane of a vector.

SHA-256 is a long chain of dependent 32-bit steps, so one message cannot use a wide vector, but sixteen can
share every step. The state is eight vectors of sixteen words, vector k holding word k of every lane; the
message schedule is sixteen such vectors, updated in place. A block is read as sixteen rows of 64 bytes, one
per lane, and transposed by four rounds of shuffles (exchange halves at distance 8, 4, 2, 1), which also turns
the digests back. Lanes may differ in length: the loop runs to the longest message, and a lane that is done
keeps its state by a select and reads its first block again, so that it touches no foreign memory.

Messages come padded (FIPS 180-4, 5.1.1) to whole blocks; whoever encodes them writes the padding. With
AVX-512 the 24 vectors stay in registers; with AVX2 the compiler splits each in two. Where the processor has
SHA instructions but no AVX-512, OpenSSL's block function is faster and is called by its address: an integer
argument, because a function that holds a ctypes pointer cannot be cached.

Rounds 0–15 are laid out once and rounds 16–63 as a loop of three: a third of the code of full unrolling, at
the same speed, and so a third of the time to compile. The kernel is bound by the two ports that take wide
arithmetic: two groups of sixteen side by side run out of registers and lose a quarter, only fewer operations
gain. So inner nodes have a kernel of their own (`_emit_nodes`), which reads pairs of digests where they lie.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from tallystick.kernels.jit import compiled
from tallystick.kernels.memory import I64, copy4, copy8, copy32, load4, load8, store1, store4, store4_big, store8

LANES = 16
BLOCK_BYTES = 64
DIGEST_BYTES = 32
SPARE_DIGESTS = 2 * LANES  # room behind the digests: sixteen nodes have thirty-two children, needed or not
STATE_BYTES = 192  # sixteen addresses and counts, or OpenSSL's 112 bytes of state
NODE_BYTES = 128  # 0x01, two digests, padding
SPARE_BYTES = STATE_BYTES + NODE_BYTES + 16 + DIGEST_BYTES  # and a node's address and blocks, and the odd digest

INITIAL = (
    0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19,
)  # fmt: skip
ROUND = (
    0x428A2F98, 0x71374491, 0xB5C0FBCF, 0xE9B5DBA5, 0x3956C25B, 0x59F111F1, 0x923F82A4, 0xAB1C5ED5,
    0xD807AA98, 0x12835B01, 0x243185BE, 0x550C7DC3, 0x72BE5D74, 0x80DEB1FE, 0x9BDC06A7, 0xC19BF174,
    0xE49B69C1, 0xEFBE4786, 0x0FC19DC6, 0x240CA1CC, 0x2DE92C6F, 0x4A7484AA, 0x5CB0A9DC, 0x76F988DA,
    0x983E5152, 0xA831C66D, 0xB00327C8, 0xBF597FC7, 0xC6E00BF3, 0xD5A79147, 0x06CA6351, 0x14292967,
    0x27B70A85, 0x2E1B2138, 0x4D2C6DFC, 0x53380D13, 0x650A7354, 0x766A0ABB, 0x81C2C92E, 0x92722C85,
    0xA2BFE8A1, 0xA81A664B, 0xC24B8B70, 0xC76C51A3, 0xD192E819, 0xD6990624, 0xF40E3585, 0x106AA070,
    0x19A4C116, 0x1E376C08, 0x2748774C, 0x34B0BCB5, 0x391C0CB3, 0x4ED8AA4A, 0x5B9CCA4F, 0x682E6FF3,
    0x748F82EE, 0x78A5636F, 0x84C87814, 0x8CC70208, 0x90BEFFFA, 0xA4506CEB, 0xBEF9A3F7, 0xC67178F2,
)  # fmt: skip

_i1, _i32, _i64 = ir.IntType(1), ir.IntType(32), ir.IntType(64)
_vector = ir.VectorType(_i32, LANES)


class _Emitter:
    """Writes the vector code; `b` is llvmlite's builder."""

    def __init__(self, builder: Any) -> None:
        self.b = builder
        module = builder.module
        three = ir.FunctionType(_vector, [_vector] * 3)
        self._funnel = cgutils.get_or_insert_function(module, three, "llvm.fshr.v16i32")
        one = ir.FunctionType(_vector, [_vector])
        self._swap = cgutils.get_or_insert_function(module, one, "llvm.bswap.v16i32")
        reduce = ir.FunctionType(_i32, [_vector])
        self._max = cgutils.get_or_insert_function(module, reduce, "llvm.vector.reduce.umax.v16i32")
        words = ir.ArrayType(_i32, len(ROUND))
        self._round = cgutils.global_constant(module, "sha256_round", ir.Constant(words, list(ROUND)))

    def constant(self, word: int) -> Any:
        return ir.Constant(_vector, [ir.Constant(_i32, word)] * LANES)

    def splat(self, word: Any) -> Any:
        undefined = ir.Constant(_vector, ir.Undefined)
        first = self.b.insert_element(undefined, word, ir.Constant(_i32, 0))
        return self.b.shuffle_vector(first, undefined, self.constant(0))

    def load(self, address: Any, type_: Any) -> Any:
        return self.b.load(self.b.inttoptr(address, type_.as_pointer()), align=1, typ=type_)

    def rotate(self, x: Any, count: int) -> Any:
        return self.b.call(self._funnel, [x, x, self.constant(count)])

    def join(self, high: Any, low: Any, count: int) -> Any:
        """The low word of the pair of words `high`, `low`, moved right by `count` bits."""
        return self.b.call(self._funnel, [high, low, self.constant(count)])

    def swap_bytes(self, x: Any) -> Any:
        return self.b.call(self._swap, [x])

    def largest(self, x: Any) -> Any:
        return self.b.call(self._max, [x])

    def xor(self, x: Any, y: Any, z: Any) -> Any:
        return self.b.xor(self.b.xor(x, y), z)

    def round_constant(self, number: Any) -> Any:
        pointer = self.b.gep(self._round, [ir.Constant(_i32, 0), number], inbounds=True)
        return self.splat(self.b.load(pointer, typ=_i32))

    def transpose(self, rows: list[Any]) -> list[Any]:
        rows = list(rows)
        for distance in (8, 4, 2, 1):
            low = self._lanes([i if not i & distance else LANES + i - distance for i in range(LANES)])
            high = self._lanes([i + distance if not i & distance else LANES + i for i in range(LANES)])
            for i in range(LANES):
                if not i & distance:
                    x, y = rows[i], rows[i + distance]
                    rows[i] = self.b.shuffle_vector(x, y, low)
                    rows[i + distance] = self.b.shuffle_vector(x, y, high)
        return rows

    def _lanes(self, choice: list[int]) -> Any:
        return ir.Constant(_vector, [ir.Constant(_i32, lane) for lane in choice])

    def schedule(self, words: list[Any], i: int) -> None:
        """Word t from words t−16, t−15, t−7 and t−2, in place of word t−16."""
        x, y = words[(i + 1) % 16], words[(i + 14) % 16]
        small0 = self.xor(self.rotate(x, 7), self.rotate(x, 18), self.b.lshr(x, self.constant(3)))
        small1 = self.xor(self.rotate(y, 17), self.rotate(y, 19), self.b.lshr(y, self.constant(10)))
        words[i] = self.b.add(self.b.add(words[i], small0), self.b.add(words[(i + 9) % 16], small1))

    def step(self, state: list[Any], word: Any, constant: Any) -> list[Any]:
        a, b, c, d, e, f, g, h = state
        big1 = self.xor(self.rotate(e, 6), self.rotate(e, 11), self.rotate(e, 25))
        choose = self.b.xor(g, self.b.and_(e, self.b.xor(f, g)))
        t1 = self.b.add(self.b.add(self.b.add(h, self.b.add(word, constant)), big1), choose)
        big0 = self.xor(self.rotate(a, 2), self.rotate(a, 13), self.rotate(a, 22))
        majority = self.b.or_(self.b.and_(a, b), self.b.and_(c, self.b.or_(a, b)))
        return [self.b.add(t1, self.b.add(big0, majority)), a, b, c, self.b.add(d, t1), e, f, g]

    def rounds(self, state: list[Any], words: list[Any], laid_out: int) -> list[Any]:
        """The 64 rounds over one block: `laid_out` of them (16 or 32) in a row, the rest as a loop of sixteen each."""
        words, working = list(words), list(state)
        for i in range(laid_out):
            if i >= 16:
                self.schedule(words, i % 16)
            working = self.step(working, words[i % 16], self.constant(ROUND[i]))
        before, loop = self.b.block, self.b.append_basic_block("later_rounds")
        done = self.b.append_basic_block("rounds_done")
        self.b.branch(loop)
        self.b.position_at_end(loop)
        (first,) = self.phis([ir.Constant(_i32, laid_out)], before)
        looped = self.phis(words + working, before)
        words, working = looped[:16], looped[16:]
        for i in range(16):
            self.schedule(words, i)
            constant = self.round_constant(self.b.add(first, ir.Constant(_i32, i)))
            working = self.step(working, words[i], constant)
        following = self.b.add(first, ir.Constant(_i32, 16))
        first.add_incoming(following, loop)
        for phi, value in zip(looped, words + working, strict=True):
            phi.add_incoming(value, loop)
        self.b.cbranch(self.b.icmp_unsigned("<", following, ir.Constant(_i32, len(ROUND))), loop, done)
        self.b.position_at_end(done)
        return working

    def store_digests(self, state: list[Any], out: Any) -> None:
        half = ir.VectorType(_i32, 8)
        first_eight = ir.Constant(half, [ir.Constant(_i32, i) for i in range(8)])
        digests = self.transpose([self.swap_bytes(word) for word in state] * 2)
        for i in range(LANES):
            digest = self.b.shuffle_vector(digests[i], digests[i], first_eight)
            place = self.b.inttoptr(self.b.add(out, ir.Constant(_i64, DIGEST_BYTES * i)), half.as_pointer())
            self.b.store(digest, place, align=1)

    def phis(self, values: list[Any], source: Any) -> list[Any]:
        joined = []
        for value in values:
            phi = self.b.phi(value.type)
            phi.add_incoming(value, source)
            joined.append(phi)
        return joined


def _emit(builder: Any, pointers: Any, blocks: Any, out: Any) -> None:
    """The digests of sixteen padded messages: lane i has `blocks[i]` blocks at `pointers[i]`, digest at out + 32 i."""
    e = _Emitter(builder)
    counts = e.load(blocks, _vector)
    longest = e.largest(counts)
    starts = [e.load(builder.add(pointers, ir.Constant(_i64, 8 * i)), _i64) for i in range(LANES)]

    before = builder.block
    each_block = builder.append_basic_block("each_block")
    done = builder.append_basic_block("done")
    builder.branch(each_block)

    builder.position_at_end(each_block)
    (number,) = e.phis([ir.Constant(_i32, 0)], before)
    state = e.phis([e.constant(word) for word in INITIAL], before)
    active = builder.icmp_unsigned("<", e.splat(number), counts)
    offset = builder.zext(builder.shl(number, ir.Constant(_i32, 6)), _i64)
    rows = []
    for i in range(LANES):
        inside = builder.extract_element(active, ir.Constant(_i32, i))
        shift = builder.select(inside, offset, ir.Constant(_i64, 0))
        rows.append(e.load(builder.add(starts[i], shift), _vector))
    words = [e.swap_bytes(word) for word in e.transpose(rows)]
    working = e.rounds(state, words, laid_out=16)
    sums = [builder.select(active, builder.add(s, w), s) for s, w in zip(state, working, strict=True)]
    next_number = builder.add(number, ir.Constant(_i32, 1))
    number.add_incoming(next_number, builder.block)
    for phi, value in zip(state, sums, strict=True):
        phi.add_incoming(value, builder.block)
    builder.cbranch(builder.icmp_unsigned("<", next_number, longest), each_block, done)

    builder.position_at_end(done)
    e.store_digests(sums, out)


def _emit_nodes(builder: Any, pairs: Any, out: Any) -> None:
    """The digests of sixteen inner nodes, whose children lie as pairs of digests at `pairs`.

    A node is SHA-256(0x01 ‖ left ‖ right): its first block is the pair moved by one byte, which is done on the words;
    its second block is the pair's last byte and padding, so that half of its schedule is the same for all nodes and
    the compiler works it out.
    """
    e = _Emitter(builder)
    rows = [e.load(builder.add(pairs, ir.Constant(_i64, 2 * DIGEST_BYTES * i)), _vector) for i in range(LANES)]
    pair = [e.swap_bytes(word) for word in e.transpose(rows)]
    before = [e.constant(1), *pair]
    state = [e.constant(word) for word in INITIAL]
    words = [e.join(high, low, 8) for high, low in zip(before, pair, strict=False)]
    working = e.rounds(state, words, laid_out=16)
    state = [builder.add(s, w) for s, w in zip(state, working, strict=True)]
    last = builder.or_(builder.shl(pair[15], e.constant(24)), e.constant(0x80 << 16))
    padding = [e.constant(0)] * 14 + [e.constant(8 * (1 + 2 * DIGEST_BYTES))]
    working = e.rounds(state, [last, *padding], laid_out=32)
    e.store_digests([builder.add(s, w) for s, w in zip(state, working, strict=True)], out)


def _digest_lanes(_context: Any, pointers: Any, blocks: Any, out: Any) -> Any:
    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        _emit(builder, *arguments)
        return context.get_dummy_value()

    return types.void(I64, I64, I64), generate


def _digest_nodes(_context: Any, pairs: Any, out: Any) -> Any:
    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        _emit_nodes(builder, *arguments)
        return context.get_dummy_value()

    return types.void(I64, I64), generate


def _call_transform(_context: Any, function: Any, state: Any, block: Any) -> Any:
    """Call `void SHA256_Transform(SHA256_CTX *, const unsigned char *)` of OpenSSL at address `function`."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        byte_pointer = ir.IntType(8).as_pointer()
        type_ = ir.FunctionType(ir.VoidType(), [byte_pointer, byte_pointer])
        callee = builder.inttoptr(arguments[0], type_.as_pointer())
        builder.call(callee, [builder.inttoptr(argument, byte_pointer) for argument in arguments[1:]])
        return context.get_dummy_value()

    return types.void(I64, I64, I64), generate


digest_lanes = cast(Callable[[int, int, int], None], intrinsic(_digest_lanes))
digest_nodes = cast(Callable[[int, int], None], intrinsic(_digest_nodes))
call_transform = cast(Callable[[int, int, int], None], intrinsic(_call_transform))


@compiled(nogil=True, boundscheck=False)
def digest_by_openssl(starts: int, blocks: int, count: int, out: int, state: int, transform: int) -> None:
    """One message after another. `state` is an SHA256_CTX, which begins with the eight words of the state."""
    for i in range(count):
        for k in range(8):
            store4(state + 4 * k, INITIAL[k])
        start = load8(starts + 8 * i)
        for block in range(load4(blocks + 4 * i)):
            call_transform(transform, state, start + BLOCK_BYTES * block)
        for k in range(8):
            store4_big(out + DIGEST_BYTES * i + 4 * k, load4(state + 4 * k))


@compiled(nogil=True, boundscheck=False)
def digest_messages(starts: int, blocks: int, count: int, out: int, spare: int, transform: int) -> None:
    """Digests of `count` padded messages to `out`, which has room for SPARE_DIGESTS more than that.

    `starts` holds int64 addresses, `blocks` int32 counts; `spare` is SPARE_BYTES of scratch. `transform` is the
    address of OpenSSL's block function, or 0.
    """
    if transform != 0:
        digest_by_openssl(starts, blocks, count, out, spare, transform)
        return
    whole = count & -LANES
    for i in range(0, whole, LANES):
        digest_lanes(starts + 8 * i, blocks + 4 * i, out + DIGEST_BYTES * i)
    if whole < count:  # the lanes left over repeat the last message
        for i in range(LANES):
            message = min(whole + i, count - 1)
            copy8(spare + 8 * i, starts + 8 * message)
            copy4(spare + 8 * LANES + 4 * i, blocks + 4 * message)
        digest_lanes(spare, spare + 8 * LANES, out + DIGEST_BYTES * whole)


@compiled(nogil=True, boundscheck=False)
def digest_pairs(digests: int, pairs: int, spare: int, transform: int) -> None:
    """One level of the tree: the nodes over `pairs` pairs of digests, in place, from the left."""
    if transform == 0:
        for first in range(0, pairs, LANES):  # reads whole sixteens before it writes half as far
            digest_nodes(digests + 2 * DIGEST_BYTES * first, digests + DIGEST_BYTES * first)
        return
    node = spare + STATE_BYTES
    for k in range(8, NODE_BYTES // 8):
        store8(node + 8 * k, 0)
    store1(node, 1)
    store1(node + 65, 0x80)
    store4_big(node + NODE_BYTES - 4, 65 * 8)
    start, blocks = node + NODE_BYTES, node + NODE_BYTES + 8
    store8(start, node)
    store4(blocks, 2)
    for i in range(pairs):
        copy32(node + 1, digests + 2 * DIGEST_BYTES * i)
        copy32(node + 33, digests + 2 * DIGEST_BYTES * i + DIGEST_BYTES)
        digest_by_openssl(start, blocks, 1, digests + DIGEST_BYTES * i, spare, transform)


@compiled(nogil=True, boundscheck=False)
def merkle_root(digests: int, count: int, spare: int, transform: int) -> None:
    """Fold `count` leaf digests into their RFC 6962 root, in place: it ends in the first 32 bytes.

    Pairs from the left, an odd one carried up unchanged: the same tree as the split at powers of two. `digests` has
    room for SPARE_DIGESTS more than `count`.
    """
    odd = spare + STATE_BYTES + NODE_BYTES + 16
    while count > 1:
        pairs = count // 2
        if count & 1:
            copy32(odd, digests + DIGEST_BYTES * (count - 1))
        digest_pairs(digests, pairs, spare, transform)
        if count & 1:
            copy32(digests + DIGEST_BYTES * pairs, odd)
        count = pairs + (count & 1)
