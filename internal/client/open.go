package client

import (
	"context"
	"io"
	"net/http"
	"net/url"

	"github.com/tranchehq/tranche/internal/api"
)

// Open opens a run that gets items later.
func (c *Client) Open(ctx context.Context, settings api.OpenSettings) (api.Opened, error) {
	var out api.Opened
	err := c.post(ctx, "/runs/open", settings, &out)
	return out, err
}

// AddOptions go with items for an open run.
type AddOptions struct {
	IdempotencyKey string // empty: none
	Key            string // the column or field with the keys; empty: the usual one
	Format         string // empty: recognised
}

// Add sends items to an open run.
func (c *Client) Add(ctx context.Context, ref string, o AddOptions, items io.Reader) (api.AddedItems, error) {
	query := url.Values{}
	setUnlessEmpty(query, "idempotency_key", o.IdempotencyKey)
	setUnlessEmpty(query, "key", o.Key)
	setUnlessEmpty(query, "format", o.Format)
	path := runPath(ref, "/items")
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	var out api.AddedItems
	err := c.callWithin(ctx, uploadWait, http.MethodPost, path, "application/octet-stream", items, &out)
	return out, err
}

// Seal ends the adding of items to an open run.
func (c *Client) Seal(ctx context.Context, ref string, settings api.SealSettings) (api.SealedRun, error) {
	var out api.SealedRun
	err := c.post(ctx, runPath(ref, "/seal"), settings, &out)
	return out, err
}
