"""How a decoded instruction is laid out: one row of an int32 matrix, plus a row of 64-bit literals.

The listing reader writes rows, the interpreter reads them; nothing else knows the columns.
"""

from __future__ import annotations

LANES = 64

# Columns of Program.code.
UNIT = 0  # index into UNITS
OPCODE = 1  # the instruction's position within its unit
DESTINATION = 2  # register code, -1 for none
DESTINATION_MODE = 3
MASK_DESTINATION = 4  # register code of a second, lane-mask result, -1 for none
EXEC_DESTINATION = 5  # 1 if EXEC is written too (v_cmpx, saveexec)
SOURCES = 6  # number of sources
SOURCE = 7  # SOURCE + k: register code of source k (k < MAX_SOURCES)
SOURCE_MODE = 11  # SOURCE_MODE + k
MASK_SOURCE = 15  # 1 + k if source k is a lane mask (or another per-wave integer), 0 for none
OFFSET = 16  # immediate: byte offset, branch target, wait count, lane pattern
OFFSET1 = 17  # second byte offset of a paired LDS access; vmcnt, lgkmcnt pack of a wait
TRANSFER = 18  # what a memory instruction moves, see TRANSFER_* below
BYTES = 19  # bytes per lane that one transfer moves
FLAGS = 20  # FLAG_* bits of a memory instruction
DPP = 21  # data-parallel-primitive control of source 0, -1 for none
DPP_MASKS = 22  # row mask | bank mask << 4 | bound control << 8
FIRST = 23  # 1 on the first row of an assembly line (a packed instruction takes several rows)
MEANING = 24  # index of the atomic's meaning
COLUMNS = 25
MAX_SOURCES = 4

UNITS = ("vector", "scalar", "control", "lane", "lds", "memory", "scalar_memory", "matrix")
UNIT_VECTOR, UNIT_SCALAR, UNIT_CONTROL, UNIT_LANE, UNIT_LDS, UNIT_MEMORY, UNIT_SCALAR_MEMORY, UNIT_MATRIX = range(8)

# Control opcodes that the interpreter treats itself (isa.control lists them first).
CODE_END, CODE_BARRIER, CODE_WAIT = 0, 1, 2

# Register codes. Vector registers first (256 ordinary, 256 accumulation), then a hidden pair for packed
# instructions, then scalar registers under their hardware numbers.
ACCUMULATION = 256
HIDDEN = 512
SCRATCH = 516  # rows the interpreter itself works in
VECTOR_ROWS = 560
SCALAR = 1024
FLAT_SCRATCH, XNACK, VCC, M0, EXEC, SCC = 102, 104, 106, 124, 126, 128
SCALARS = 136
LITERAL = -2
NONE = -1

# Source mode bits.
WORDS = 0x7  # registers per lane
NEGATE, ABSOLUTE = 1 << 3, 1 << 4
SELECT_SHIFT = 5  # 0 whole, 1-4 byte 0-3, 5-6 half 0-1
SELECT = 7 << SELECT_SHIFT
SIGN_EXTEND = 1 << 8
FROM_F16, FROM_BF16 = 1 << 9, 1 << 10
DOUBLE = 1 << 11  # negate and absolute act on bit 63
MODIFIED = NEGATE | ABSOLUTE | SELECT | SIGN_EXTEND | FROM_F16 | FROM_BF16

# Destination mode bits (WORDS as above).
CLAMP = 1 << 3
TO_F16 = 1 << 6
KEEP_OTHER_HALF = 1 << 7
HIGH_HALF = 1 << 8
HALF = 1 << 9  # the result is 16 bits
BYTE_SHIFT = 10  # SDWA byte select, 1 + byte, 0 for none
RESULT_DOUBLE = 1 << 13
RESULT_MODIFIED = CLAMP | TO_F16 | KEEP_OTHER_HALF | HIGH_HALF | HALF | (7 << BYTE_SHIFT)

# Transfers.
TRANSFER_LOAD, TRANSFER_STORE, TRANSFER_ATOMIC, TRANSFER_TRANSPOSE = 1, 2, 3, 4
TRANSFER_BPERMUTE, TRANSFER_PERMUTE, TRANSFER_SWIZZLE, TRANSFER_CLOCK = 5, 6, 7, 8

FLAG_SIGNED, FLAG_LOW, FLAG_HIGH, FLAG_PAIR = 1, 2, 4, 8
FLAG_OFFEN, FLAG_IDXEN, FLAG_RETURN, FLAG_TO_LDS = 16, 32, 64, 128
FLAG_BUFFER, FLAG_SADDR, FLAG_SCRATCH, FLAG_CLAMPED, FLAG_FLAT = 256, 512, 1024, 2048, 4096

# Fault kinds, in the order of FAULTS.
FAULTS = (
    "none",
    "memory-fault",
    "lds-out-of-bounds",
    "bad-branch",
    "runaway",
)
NO_FAULT, MEMORY_FAULT, LDS_FAULT, BAD_BRANCH, RUNAWAY = range(5)

# Columns of a fault record.
FAULT_KIND, FAULT_ROW, FAULT_LANE, FAULT_ADDRESS, FAULT_BYTES, FAULT_WAVE, FAULT_WRITE, FAULT_GROUP = range(8)
