package trackers_test

import (
	"testing"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/endpoints/trackerclient"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/internal/trackers"
)

// Ranges, ids, whole groups and everything mean the items that one thinks of.
func TestRanges(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	const size = 2*8192 + 100
	for _, c := range []struct {
		ids, ranges []string // behind the batch
		newly       int64
	}{
		{[]string{":0:0", ":0:0", ":2:99"}, nil, 2},
		{nil, []string{":0:10-19"}, 10},
		{nil, []string{":0:10-19", ":0:15-24", ":0:20"}, 15},
		{nil, []string{":2"}, 100},
		{nil, []string{":1-2"}, 8192 + 100},
		{nil, []string{":all"}, size},
		{[]string{":2:99"}, []string{":2", ":0:0-8191"}, 8192 + 100},
		{[]string{":0:1"}, []string{":all", ":all"}, size},
	} {
		id := b.open(trackerclient.BatchSettings{}, size)
		asked := trackerclient.Acknowledgement{}
		for _, text := range c.ids {
			asked.IDs = append(asked.IDs, id.String()+text)
		}
		for _, text := range c.ranges {
			asked.Ranges = append(asked.Ranges, id.String()+text)
		}
		for _, want := range []int64{c.newly, 0} { // again: nothing new
			acked := testenv.Must(b.ack("", asked))(t)
			testenv.Same(t, acked.Newly, want, "%v %v: %+v", c.ids, c.ranges, acked)
		}
		view := b.get(id, 100, trackers.All)
		if view.Pending != size-c.newly || view.Done != c.newly {
			t.Errorf("%v %v: %+v", c.ids, c.ranges, view)
		}
		// What is missing is said as ranges that can be acknowledged as they are.
		rest, err := b.ack(id.String(), trackerclient.Acknowledgement{Ranges: view.Missing, Code: "LOST"})
		if view.Pending > 0 && (err != nil || rest.Newly != view.Pending) {
			t.Errorf("%v %v: acknowledging what is missing, %v: %+v %v", c.ids, c.ranges, view.Missing, rest, err)
		}
	}
}

func FuzzRanges(f *testing.F) {
	for _, text := range []string{"all", "0", "1-2", "0:1", "0:1-2", "-", ":", "0:1-", "99999999999", "+1", "0:-1", "۱"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := trackers.ParseRange(text)
		if err != nil {
			if err.Error() == "" {
				t.Errorf("%q: an error without a text", text)
			}
			return
		}
		groups := s.First >= 0 && s.First <= s.Last && s.Last <= bitfield.MaxGroup
		if !groups || s.Hi >= bitfield.Size || s.Hi >= 0 && s.Lo > s.Hi {
			t.Errorf("%q is taken as %+v", text, s)
		}
	})
}
