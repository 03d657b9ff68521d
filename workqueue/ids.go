package workqueue

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/tranchehq/tranche/bitfield"
)

// RunID names a run and its tracker batch. It is a version 7 UUID, so IDs sort by creation time.
type RunID uuid.UUID

// NewRunID returns a fresh ID in the partition that most runs share.
func NewRunID() RunID { return NewRunIDIn(0) }

// String returns the usual 36 characters.
func (id RunID) String() string { return uuid.UUID(id).String() }

// MarshalText and UnmarshalText make the id a string in JSON and in flags.
func (id RunID) MarshalText() ([]byte, error) { return uuid.UUID(id).MarshalText() }

// UnmarshalText reads what MarshalText writes.
func (id *RunID) UnmarshalText(b []byte) error { return (*uuid.UUID)(id).UnmarshalText(b) }

// SliceID names one attempt at one chunk and fences its writes. It is random: a standby could repeat a counter.
type SliceID uuid.UUID

// NewSliceID returns a fresh id.
func NewSliceID() SliceID { return SliceID(uuid.New()) }

// String returns the usual 36 characters.
func (id SliceID) String() string { return uuid.UUID(id).String() }

// MarshalText and UnmarshalText make the id a string in JSON.
func (id SliceID) MarshalText() ([]byte, error) { return uuid.UUID(id).MarshalText() }

// UnmarshalText reads what MarshalText writes.
func (id *SliceID) UnmarshalText(b []byte) error { return (*uuid.UUID)(id).UnmarshalText(b) }

// SessionID names one life of a node: a node that loses its session starts another one.
type SessionID uuid.UUID

// NewSessionID returns a fresh id.
func NewSessionID() SessionID { return SessionID(uuid.Must(uuid.NewV7())) }

// String returns the usual 36 characters.
func (id SessionID) String() string { return uuid.UUID(id).String() }

// MarshalText makes the id a string in JSON.
func (id SessionID) MarshalText() ([]byte, error) { return uuid.UUID(id).MarshalText() }

// Ordinal is an item's position in its run, from 0.
type Ordinal int32

// Block returns the block that holds the item, and the item's bit in it.
func (o Ordinal) Block() (block Block, bit int) {
	return Block(o / bitfield.Size), int(o % bitfield.Size)
}

// Block is the number of a block of bitfield.Size consecutive ordinals, from 0.
type Block int32

// Ordinal returns the ordinal of one bit of the block.
func (b Block) Ordinal(bit int) Ordinal { return Ordinal(int(b)*bitfield.Size + bit) }

// Step is a step's position in its plan, from 0.
type Step int16

// Generation is 1 at a run's start and increases with every rerun.
type Generation int32

// UUIDValue implements pgtype.UUIDValuer.
func (id RunID) UUIDValue() (pgtype.UUID, error) { return pgtype.UUID{Bytes: id, Valid: true}, nil }

// ScanUUID implements pgtype.UUIDScanner.
func (id *RunID) ScanUUID(v pgtype.UUID) error { return scanID((*[16]byte)(id), v) }

// UUIDValue implements pgtype.UUIDValuer.
func (id SliceID) UUIDValue() (pgtype.UUID, error) { return pgtype.UUID{Bytes: id, Valid: true}, nil }

// ScanUUID implements pgtype.UUIDScanner.
func (id *SliceID) ScanUUID(v pgtype.UUID) error { return scanID((*[16]byte)(id), v) }

// UUIDValue implements pgtype.UUIDValuer.
func (id SessionID) UUIDValue() (pgtype.UUID, error) { return pgtype.UUID{Bytes: id, Valid: true}, nil }

// ScanUUID implements pgtype.UUIDScanner.
func (id *SessionID) ScanUUID(v pgtype.UUID) error { return scanID((*[16]byte)(id), v) }

func scanID(id *[16]byte, v pgtype.UUID) error {
	if !v.Valid {
		return fmt.Errorf("cannot read an id from NULL")
	}
	*id = v.Bytes
	return nil
}

// LetterID names a dead letter. It is a version 7 UUID, so IDs sort by creation time.
type LetterID uuid.UUID

// String returns the usual 36 characters.
func (id LetterID) String() string { return uuid.UUID(id).String() }

// MarshalText makes the id a string in JSON.
func (id LetterID) MarshalText() ([]byte, error) { return uuid.UUID(id).MarshalText() }

// UnmarshalText reads what MarshalText writes.
func (id *LetterID) UnmarshalText(b []byte) error { return (*uuid.UUID)(id).UnmarshalText(b) }

// UUIDValue implements pgtype.UUIDValuer.
func (id LetterID) UUIDValue() (pgtype.UUID, error) { return pgtype.UUID{Bytes: id, Valid: true}, nil }

// ScanUUID implements pgtype.UUIDScanner.
func (id *LetterID) ScanUUID(v pgtype.UUID) error { return scanID((*[16]byte)(id), v) }

// MinPrefix is the fewest hexadecimal digits that match part of an ID.
const MinPrefix = 4

// MaxNamed bounds the ordinals that a violation names.
const MaxNamed = 10

// Lease is the right to do leader work. The epoch grows with every new leader; every leader transaction checks it.
type Lease struct {
	Session SessionID
	Epoch   int64
}

// RequestKey names a user's request.
type RequestKey struct{ User, Key string }

// RequestClaim is the right to execute a request with a key; no change commits without it: [session.WithClaim].
type RequestClaim struct {
	RequestKey
	ID uuid.UUID
}

// CarriedOut is the first change by a request, as in the audit log.
type CarriedOut struct {
	Action  string `json:"action"`
	Run     *RunID `json:"run,omitempty"`
	Subject string `json:"subject,omitempty"`
}

// ErrClaimLost is returned, without a change, if another request took over the key, its node presumed dead.
var ErrClaimLost = errors.New("another request with the same idempotency key has taken its place")

// Origin is where a request came from, for the audit log.
type Origin struct {
	Token   string `json:"token,omitempty"`   // its ID
	Session string `json:"session,omitempty"` // of a browser: the start of its hash
	Address string `json:"address,omitempty"`
	Request string `json:"request,omitempty"` // its ID

	Certificate string `json:"certificate,omitempty"` // number (hexadecimal) and issuer

	Act         string `json:"act,omitempty"` // that the request confirms; it is its asker's
	ConfirmedBy string `json:"confirmed_by,omitempty"`
}

type originKey struct{}

// WithOrigin returns a context whose audit entries name the origin.
func WithOrigin(ctx context.Context, o Origin) context.Context {
	return context.WithValue(ctx, originKey{}, o)
}

// OriginOf returns the origin in a context; the zero value: it is not a request.
func OriginOf(ctx context.Context) Origin {
	o, _ := ctx.Value(originKey{}).(Origin)
	return o
}
