package client

import (
	"context"
	"io"
	"net/url"
	"strconv"
)

// ExportOptions says what of a run is exported, and how.
type ExportOptions struct {
	Format string   // ndjson, csv or parquet; "": ndjson
	Step   string   // whose parts are the results; "": the only step that no other needs
	States []string // only items in these; none: all
	Raw    bool     // CSV without the apostrophes that defuse formulas
}

// ExportRun streams the items of a run. The caller closes the stream.
func (c *Client) ExportRun(ctx context.Context, ref string, o ExportOptions) (io.ReadCloser, error) {
	query := url.Values{"state": o.States}
	for name, value := range map[string]string{"format": o.Format, "step": o.Step} {
		if value != "" {
			query.Set(name, value)
		}
	}
	if o.Raw {
		query.Set("raw", strconv.FormatBool(o.Raw))
	}
	return c.stream(ctx, runPath(ref, "/export?"+query.Encode()))
}
