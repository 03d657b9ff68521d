package client

import (
	"context"
	"net/http"
	"net/url"

	"github.com/tranchehq/tranche/workqueue"
)

// Explain says why a run is not done, or the items of one key when it is given.
func (c *Client) Explain(ctx context.Context, ref, key string) (workqueue.Explanation, error) {
	path := runPath(ref, "/explain")
	if key != "" {
		path += "?" + url.Values{"item": {key}}.Encode()
	}
	var out workqueue.Explanation
	err := c.call(ctx, http.MethodGet, path, "", nil, &out)
	return out, err
}

// ExplainEndpoint says why an endpoint does not move.
func (c *Client) ExplainEndpoint(ctx context.Context, name string) (workqueue.EndpointExplanation, error) {
	var out workqueue.EndpointExplanation
	err := c.call(ctx, http.MethodGet, "/endpoints/"+segment(name)+"/explain", "", nil, &out)
	return out, err
}
