package trackers_test

import (
	"errors"
	"testing"

	"github.com/google/uuid"

	"github.com/tranchehq/tranche/bitfield/tracker/service"
	"github.com/tranchehq/tranche/endpoints/fanout"
)

// A call that names a group of each of very many batches is refused before it takes up memory for all of them.
func TestGroupsOfACallAreBoundedOverBatches(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	ids := make([]string, service.MaxAckGroups+1)
	for i := range ids {
		ids[i] = uuid.NewString() + ":0:0"
	}
	_, err := b.service.Ack(t.Context(), nil, fanout.Acknowledgement{IDs: ids})
	bad, ok := errors.AsType[*fanout.Error](err)
	if !ok || bad.Code != fanout.CodeTooMany || bad.Place != "ids[20000]" {
		t.Errorf("it is answered with %#v", err)
	}
	if n := b.store.commits.Load(); n != 0 {
		t.Errorf("it came to %d transactions", n)
	}
}
