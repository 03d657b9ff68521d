package client

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/tranchehq/tranche/internal/api"
)

// Report returns the account of a run, compared with an earlier one unless against is empty.
func (c *Client) Report(ctx context.Context, ref, against string, digests bool) (api.ReportDocument, error) {
	query := url.Values{"digests": {strconv.FormatBool(digests)}}
	setUnlessEmpty(query, "against", against)
	var out api.ReportDocument
	err := c.callWithin(ctx, doctorWait, http.MethodGet, runPath(ref, "/report?"+query.Encode()), "", nil, &out)
	return out, err
}

// Differences streams the keys of two runs that have one of the changes as lines of JSON. The caller closes the stream.
func (c *Client) Differences(ctx context.Context, ref, against string, changes []string) (io.ReadCloser, error) {
	query := url.Values{"against": {against}, "change": changes}
	return c.stream(ctx, runPath(ref, "/comparison?"+query.Encode()))
}
