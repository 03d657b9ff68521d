package wire

import (
	"testing"

	"github.com/google/uuid"
)

const benchChunk = 500

const someParent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

func newMeta() Meta {
	slice := uuid.New()
	return Meta{Run: uuid.New(), Slice: slice, Step: 0, Attempt: 1, Generation: 1, Mode: ModeBatch, Root: slice,
		Deliveries: DefaultDeliveries}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
