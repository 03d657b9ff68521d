package endpoints

import (
	"fmt"

	"github.com/tranchehq/tranche/endpoints/wire"
)

// Part returns what the step of a name has made of the item, or false when the item comes without it: the step is
// optional and has failed, or is none of the inputs that the plan declares.
func (i *Item[In, Out]) Part(name string) (wire.Part, bool) { return i.parts.Find(name) }

// Part returns what the step of a name has made of the item, as [Item.Part] does. Like In it is there in the first
// stage only; what a later one needs belongs in State.
func (i *StageItem[In, Out, State, Shared]) Part(name string) (wire.Part, bool) {
	return i.core.Parts.Find(name)
}

// Part returns what the step of a name has made of the item, as [Item.Part] does.
func (i ItemInfo) Part(name string) (wire.Part, bool) { return i.parts.Find(name) }

// HasParts is what parts can be asked of: an Item, a StageItem, an ItemInfo.
type HasParts interface {
	Part(name string) (wire.Part, bool)
}

// PartOf reads a part as T. With T = Binary it takes one of any content type, JSON included; any other T takes JSON
// only. there is false, with the zero T, when the item comes without the part.
//
// The error is a *SlotError of CodeBadPart that trying again would not help, fit to be answered as it is. It names the
// part, the place in it and the types, never a value.
func PartOf[T any](item HasParts, name string) (value T, there bool, err error) {
	part, there := item.Part(name)
	if !there {
		return value, false, nil
	}
	if binary, ok := any(&value).(*wire.Binary); ok {
		*binary = wire.Binary{ContentType: part.ContentType, Data: part.Data}
		if part.ContentType == "" {
			binary.ContentType = wire.ContentTypeJSON
		}
		return value, true, nil
	}
	if err := part.Decode(&value); err != nil {
		var none T
		return none, true, wire.NewSlotError(wire.CodeBadPart, fmt.Sprintf("part %.80q: %v", name, err), false)
	}
	return value, true, nil
}
