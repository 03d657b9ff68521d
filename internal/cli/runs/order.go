package runs

import (
	"fmt"
	"strings"

	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/orchestrator/client"
)

// orderText says how the items of a run are put in lanes.
func orderText(o *client.OrderView) string {
	text := "by " + cli.Inert(o.By)
	switch {
	case o.Partitions > 0:
		text += fmt.Sprintf(" over %s partitions", cli.Count(int64(o.Partitions)))
	case len(o.Values) > 0:
		text += ", with these values: " + cli.Inert(strings.Join(o.Values, ", "))
	}
	text += "; one after the other in each lane"
	if o.OnFailure == "stop" {
		text += ", and a failure stops the lane"
	}
	return text
}
