package workqueue

import (
	"encoding/binary"
	"math/bits"

	"github.com/google/uuid"
)

// Partitions is how many work_queue has, and work_part as many. PostgreSQL puts the rows of a run into one of them by a
// hash of its id; whoever makes the id chooses which by trying ids. Most runs share partition 0; a large load takes
// another one, if it can one that nobody has, so that deleting it is emptying a table. Which one a run is in is of no
// matter to anything but that.
const Partitions = 32

// NewRunIDIn returns a fresh id of a run whose items and outcomes go to a partition. Only its last, random bits are
// chosen by that: it sorts by its time like any other.
func NewRunIDIn(partition int) RunID {
	id := uuid.Must(uuid.NewV7())
	tail := id[12:]
	for n := binary.BigEndian.Uint32(tail); RunID(id).Partition() != partition; n++ {
		binary.BigEndian.PutUint32(tail, n)
	}
	return RunID(id)
}

// Partition is where PostgreSQL has the rows of the run: what uuid_hash_extended makes of the id with the seed of hash
// partitions, on servers that have the low byte first. On others it is merely wrong, and runs are scattered.
func (id RunID) Partition() int {
	const (
		seed    = 0x7a5b22367996dcfd // HASH_PARTITION_SEED
		combine = 0x49a0f4dd15e5a8e3 // of hash_combine64
	)
	start := uint32(0x9e3779b9 + len(id) + 3923095)
	h := lookup3{start, start, start}
	h.a += seed >> 32
	h.b += seed & 0xffffffff
	h.mix()
	h.a += binary.LittleEndian.Uint32(id[0:])
	h.b += binary.LittleEndian.Uint32(id[4:])
	h.c += binary.LittleEndian.Uint32(id[8:])
	h.mix()
	h.a += binary.LittleEndian.Uint32(id[12:])
	h.final()
	return int((uint64(h.b)<<32|uint64(h.c))+combine) & (Partitions - 1)
}

// lookup3 is the state of Bob Jenkins' hash of that name, as PostgreSQL has it (hash_bytes_extended).
type lookup3 struct{ a, b, c uint32 }

func (h *lookup3) mix() {
	h.a, h.c = h.a-h.c^bits.RotateLeft32(h.c, 4), h.c+h.b
	h.b, h.a = h.b-h.a^bits.RotateLeft32(h.a, 6), h.a+h.c
	h.c, h.b = h.c-h.b^bits.RotateLeft32(h.b, 8), h.b+h.a
	h.a, h.c = h.a-h.c^bits.RotateLeft32(h.c, 16), h.c+h.b
	h.b, h.a = h.b-h.a^bits.RotateLeft32(h.a, 19), h.a+h.c
	h.c, h.b = h.c-h.b^bits.RotateLeft32(h.b, 4), h.b+h.a
}

func (h *lookup3) final() {
	h.c = h.c ^ h.b - bits.RotateLeft32(h.b, 14)
	h.a = h.a ^ h.c - bits.RotateLeft32(h.c, 11)
	h.b = h.b ^ h.a - bits.RotateLeft32(h.a, 25)
	h.c = h.c ^ h.b - bits.RotateLeft32(h.b, 16)
	h.a = h.a ^ h.c - bits.RotateLeft32(h.c, 4)
	h.b = h.b ^ h.a - bits.RotateLeft32(h.a, 14)
	h.c = h.c ^ h.b - bits.RotateLeft32(h.b, 24)
}
