package endpoints

import (
	"testing"

	"github.com/google/uuid"
)

const benchChunkW = 500

const someParentW = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

func newMetaW() Meta {
	slice := uuid.New()
	return Meta{Run: uuid.New(), Slice: slice, Step: 0, Attempt: 1, Generation: 1, Mode: ModeBatch, Root: slice,
		Deliveries: DefaultDeliveries}
}

func checkW(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
