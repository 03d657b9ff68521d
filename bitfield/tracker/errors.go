package tracker

import (
	"errors"
	"fmt"

	"github.com/google/uuid"

	"github.com/tranchehq/tranche/bitfield"
)

var (
	// ErrNotFound is wrapped by every error about a batch that does not exist.
	ErrNotFound = errors.New("no such tracker batch")
	// ErrExists is wrapped when a batch is opened under an id that is taken.
	ErrExists = errors.New("the tracker batch exists already")
	// ErrNothing is wrapped when AddGroups gets no sizes, or Rearm no members: the call would have no effect that
	// anyone could later wait for.
	ErrNothing = errors.New("nothing was given")

	errTwice = errors.New("it was named twice; put its items together")
)

// StateError is returned when an operation does not fit the state that a batch is in.
type StateError struct {
	Batch uuid.UUID
	State State  // the state it is in
	Op    string // what was asked
	Want  string // the states in which it can be done
}

func (e *StateError) Error() string {
	return fmt.Sprintf("%s: tracker batch %s is %s; it must be %s", e.Op, e.Batch, e.State, e.Want)
}

// SizeError is returned by AddGroups for a group of no items or of more than bitfield.Size.
type SizeError struct {
	Batch uuid.UUID
	At    int // the place in the list of sizes, from 0
	Size  int
}

func (e *SizeError) Error() string {
	return fmt.Sprintf("add groups to tracker batch %s: size %d of the list is %d; a group holds 1 to %d items",
		e.Batch, e.At, e.Size, bitfield.Size)
}

// GroupError is returned for a mask that fits no group of its batch: there is no such group, or it is too small.
type GroupError struct {
	Batch  uuid.UUID
	Group  int
	Groups int // how many groups the batch has; 0 when that was not looked up
	Size   int // the size of the group; 0 when there is no such group
	Bit    int // the largest member of the mask
}

func (e *GroupError) Error() string {
	switch {
	case e.Size == 0 && e.Groups == 0:
		return fmt.Sprintf("tracker batch %s has no group %d", e.Batch, e.Group)
	case e.Size == 0:
		return fmt.Sprintf("tracker batch %s has no group %d: it has groups 0 to %d", e.Batch, e.Group, e.Groups-1)
	}
	return fmt.Sprintf("group %d of tracker batch %s has no item %d: it has items 0 to %d",
		e.Group, e.Batch, e.Bit, e.Size-1)
}
