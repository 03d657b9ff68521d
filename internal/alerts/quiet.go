package alerts

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/tranchehq/tranche/gather/strictyaml"
)

// Quiet is the hours in which only what is critical is told.
type Quiet struct {
	From string `json:"from"` // a time of day, 22:00
	To   string `json:"to"`   // the first time that is not quiet; before From: of the next day
	Zone string `json:"zone"` // of IANA
}

func (q *Quiet) read(v strictyaml.Value) error {
	return v.Fields(
		strictyaml.Field{Name: "from", Read: strictyaml.Text(&q.From)},
		strictyaml.Field{Name: "to", Read: strictyaml.Text(&q.To)},
		strictyaml.Field{Name: "zone", Read: strictyaml.Text(&q.Zone)},
	)
}

const clockLayout = "15:04"

var errSame = errors.New("it is the same as from: that would be the whole day; pause the rule instead")

// check names the field that is wrong.
func (q *Quiet) check() (field string, err error) {
	for _, f := range []struct{ name, text string }{{"from", q.From}, {"to", q.To}} {
		if at, err := time.Parse(clockLayout, f.text); err != nil || at.Format(clockLayout) != f.text {
			return f.name, fmt.Errorf("want a time of day like \"22:00\", in quotes; this is %.20q", f.text)
		}
	}
	if q.From == q.To {
		return "to", errSame
	}
	if _, err := time.LoadLocation(q.Zone); err != nil || q.Zone == "" || strings.EqualFold(q.Zone, "local") {
		return "zone", fmt.Errorf("there is no time zone %.60q; want a name of IANA, like Europe/Berlin or UTC", q.Zone)
	}
	return "", nil
}

// At reports whether a time is in the quiet hours, by the clock on the wall of their zone. nil: no time is.
func (q *Quiet) At(t time.Time) bool {
	if q == nil {
		return false
	}
	zone, err := time.LoadLocation(q.Zone)
	if err != nil {
		return false // it was checked; rather too loud than silent
	}
	now := t.In(zone).Format(clockLayout)
	if q.From < q.To {
		return q.From <= now && now < q.To
	}
	return now >= q.From || now < q.To
}
