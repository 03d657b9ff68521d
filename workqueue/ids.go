package workqueue

import (
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/tranchehq/tranche/bitfield"
)

// RunID names a run. It is a version 7 UUID, so ids sort by the time of their making. It is also the id of the run's
// tracker batch.
type RunID uuid.UUID

// NewRunID returns a fresh id, in the partition that most runs share.
func NewRunID() RunID { return NewRunIDIn(0) }

// String returns the usual 36 characters.
func (id RunID) String() string { return uuid.UUID(id).String() }

// MarshalText and UnmarshalText make the id a string in JSON and in flags.
func (id RunID) MarshalText() ([]byte, error) { return uuid.UUID(id).MarshalText() }

// UnmarshalText reads what MarshalText writes.
func (id *RunID) UnmarshalText(b []byte) error { return (*uuid.UUID)(id).UnmarshalText(b) }

// SliceID names one attempt at one chunk and is the fence of every write about it. It is random (version 4): a counter
// could be handed out twice after a failover to a standby that lags.
type SliceID uuid.UUID

// NewSliceID returns a fresh id.
func NewSliceID() SliceID { return SliceID(uuid.New()) }

// String returns the usual 36 characters.
func (id SliceID) String() string { return uuid.UUID(id).String() }

// MarshalText and UnmarshalText make the id a string in JSON.
func (id SliceID) MarshalText() ([]byte, error) { return uuid.UUID(id).MarshalText() }

// UnmarshalText reads what MarshalText writes.
func (id *SliceID) UnmarshalText(b []byte) error { return (*uuid.UUID)(id).UnmarshalText(b) }

// SessionID names one life of a node: a node that lost its session starts a new one under a new id.
type SessionID uuid.UUID

// NewSessionID returns a fresh id.
func NewSessionID() SessionID { return SessionID(uuid.Must(uuid.NewV7())) }

// String returns the usual 36 characters.
func (id SessionID) String() string { return uuid.UUID(id).String() }

// MarshalText makes the id a string in JSON.
func (id SessionID) MarshalText() ([]byte, error) { return uuid.UUID(id).MarshalText() }

// Ordinal is an item's place in its run, from 0.
type Ordinal int32

// Block returns the block that holds the item, and the item's bit in it.
func (o Ordinal) Block() (block Block, bit int) {
	return Block(o / bitfield.Size), int(o % bitfield.Size)
}

// Block is the number of a block of bitfield.Size consecutive ordinals, from 0.
type Block int32

// Ordinal returns the ordinal of one bit of the block.
func (b Block) Ordinal(bit int) Ordinal { return Ordinal(int(b)*bitfield.Size + bit) }

// Step is a step's place in its plan, from 0.
type Step int16

// Generation counts the times a run was armed: 1 at its start, one more with every re-run.
type Generation int32

// UUIDValue makes the id a uuid in SQL.
func (id RunID) UUIDValue() (pgtype.UUID, error) { return pgtype.UUID{Bytes: id, Valid: true}, nil }

// ScanUUID reads the id from a uuid in SQL.
func (id *RunID) ScanUUID(v pgtype.UUID) error { return scanID((*[16]byte)(id), v) }

// UUIDValue makes the id a uuid in SQL.
func (id SliceID) UUIDValue() (pgtype.UUID, error) { return pgtype.UUID{Bytes: id, Valid: true}, nil }

// ScanUUID reads the id from a uuid in SQL.
func (id *SliceID) ScanUUID(v pgtype.UUID) error { return scanID((*[16]byte)(id), v) }

// UUIDValue makes the id a uuid in SQL.
func (id SessionID) UUIDValue() (pgtype.UUID, error) { return pgtype.UUID{Bytes: id, Valid: true}, nil }

// ScanUUID reads the id from a uuid in SQL.
func (id *SessionID) ScanUUID(v pgtype.UUID) error { return scanID((*[16]byte)(id), v) }

func scanID(id *[16]byte, v pgtype.UUID) error {
	if !v.Valid {
		return fmt.Errorf("cannot read an id from NULL")
	}
	*id = v.Bytes
	return nil
}

// LetterID names a dead letter. It is a version 7 UUID, so ids sort by the time of their making.
type LetterID uuid.UUID

// String returns the usual 36 characters.
func (id LetterID) String() string { return uuid.UUID(id).String() }

// MarshalText makes the id a string in JSON.
func (id LetterID) MarshalText() ([]byte, error) { return uuid.UUID(id).MarshalText() }

// UnmarshalText reads what MarshalText writes.
func (id *LetterID) UnmarshalText(b []byte) error { return (*uuid.UUID)(id).UnmarshalText(b) }

// UUIDValue makes the id a uuid in SQL.
func (id LetterID) UUIDValue() (pgtype.UUID, error) { return pgtype.UUID{Bytes: id, Valid: true}, nil }

// ScanUUID reads the id from a uuid in SQL.
func (id *LetterID) ScanUUID(v pgtype.UUID) error { return scanID((*[16]byte)(id), v) }

// MinPrefix is the least number of hexadecimal digits that count as the beginning, or a piece, of an id.
const MinPrefix = 4

// MaxNamed bounds the items that are named one by one.
const MaxNamed = 10 // ordinals that a violation names

// Lease is the right to do leader work. The epoch grows with every change of hands; every leader transaction checks it.
type Lease struct {
	Session SessionID
	Epoch   int64
}

// RequestKey names a request of a user's.
type RequestKey struct{ User, Key string }

// RequestClaim is the right to carry out a request that named a key. What carries it out without the right, because it
// has passed to another, is rolled back: see [request.WithClaim].
type RequestClaim struct {
	RequestKey
	ID uuid.UUID
}

// CarriedOut is the first thing that a request has changed, as the audit log has it.
type CarriedOut struct {
	Action  string `json:"action"`
	Run     *RunID `json:"run,omitempty"`
	Subject string `json:"subject,omitempty"`
}

// ErrClaimLost is returned for a change by a request whose key another one has taken over: its node had been thought
// dead. Nothing was changed.
var ErrClaimLost = errors.New("another request with the same idempotency key has taken its place")
