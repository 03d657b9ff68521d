package client

import (
	"context"
	"net/http"

	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/workqueue"
)

// Tokens lists tokens, newest first.
func (c *Client) Tokens(ctx context.Context) (api.TokenList, error) {
	var out api.TokenList
	err := c.call(ctx, http.MethodGet, "/tokens", "", nil, &out)
	return out, err
}

// CreateToken makes a token. Its secret is in no other answer.
func (c *Client) CreateToken(ctx context.Context, set api.TokenSettings) (api.CreatedToken, error) {
	var out api.CreatedToken
	err := c.post(ctx, "/tokens", set, &out)
	return out, err
}

// RevokeToken ends a token.
func (c *Client) RevokeToken(ctx context.Context, ref string) (workqueue.TokenView, error) {
	var out workqueue.TokenView
	err := c.call(ctx, http.MethodPost, "/tokens/"+segment(ref)+"/revoke", "", nil, &out)
	return out, err
}
