package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"

	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/workqueue"
)

// DeadLetters lists dead letters, newest first. Empty texts mean every endpoint, every state and the first page.
func (c *Client) DeadLetters(
	ctx context.Context, endpoint, state, after string, limit int,
) (workqueue.DeadLetterPage, error) {
	query := url.Values{"limit": {strconv.Itoa(limit)}}
	setUnlessEmpty(query, "endpoint", endpoint)
	setUnlessEmpty(query, "state", state)
	setUnlessEmpty(query, "after", after)
	var out workqueue.DeadLetterPage
	err := c.call(ctx, http.MethodGet, "/dead-letters?"+query.Encode(), "", nil, &out)
	return out, err
}

// DeadLetter returns one dead letter, with all of its body or only its beginning.
func (c *Client) DeadLetter(ctx context.Context, ref string, full bool) (api.DeadLetterDocument, error) {
	var out api.DeadLetterDocument
	err := c.call(ctx, http.MethodGet, "/dead-letters/"+segment(ref)+"?full="+strconv.FormatBool(full), "", nil,
		&out)
	return out, err
}

// Requeue has dead letters sent again.
func (c *Client) Requeue(ctx context.Context, settings api.RequeueSettings) (workqueue.Requeue, error) {
	var out workqueue.Requeue
	err := c.post(ctx, "/dead-letters/requeue", settings, &out)
	return out, err
}

// Drop gives dead letters up.
func (c *Client) Drop(ctx context.Context, sel api.LetterSelection) (api.Dropped, error) {
	var out api.Dropped
	err := c.post(ctx, "/dead-letters/drop", sel, &out)
	return out, err
}

// Quarantine lists messages that could not be taken, newest first. Zero values mean every run and the first page.
func (c *Client) Quarantine(ctx context.Context, run string, after int64, limit int) (workqueue.QuarantinePage, error) {
	query := url.Values{"limit": {strconv.Itoa(limit)}, "after": {strconv.FormatInt(after, 10)}}
	setUnlessEmpty(query, "run", run)
	var out workqueue.QuarantinePage
	err := c.call(ctx, http.MethodGet, "/quarantine?"+query.Encode(), "", nil, &out)
	return out, err
}

// Quarantined returns one message that could not be taken.
func (c *Client) Quarantined(ctx context.Context, id int64) (api.QuarantinedDocument, error) {
	var out api.QuarantinedDocument
	err := c.call(ctx, http.MethodGet, "/quarantine/"+strconv.FormatInt(id, 10), "", nil, &out)
	return out, err
}

func setUnlessEmpty(query url.Values, name, value string) {
	if value != "" {
		query.Set(name, value)
	}
}
