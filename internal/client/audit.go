package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/tranchehq/tranche/workqueue"
)

// AuditFilter chooses entries of the audit log. Zero values mean all of them, and the first page.
type AuditFilter struct {
	Run    string
	Actor  string
	Action string
	Since  time.Time
	Before int64
	Limit  int
}

// Audit lists what was done, newest first.
func (c *Client) Audit(ctx context.Context, f AuditFilter) (workqueue.AuditPage, error) {
	query := url.Values{"limit": {strconv.Itoa(f.Limit)}, "before": {strconv.FormatInt(f.Before, 10)}}
	setUnlessEmpty(query, "run", f.Run)
	setUnlessEmpty(query, "actor", f.Actor)
	setUnlessEmpty(query, "action", f.Action)
	if !f.Since.IsZero() {
		query.Set("since", f.Since.Format(time.RFC3339Nano))
	}
	var out workqueue.AuditPage
	err := c.call(ctx, http.MethodGet, "/audit?"+query.Encode(), "", nil, &out)
	return out, err
}
