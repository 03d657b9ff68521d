package client

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/workqueue"
)

// ApplyPlan puts a plan on record, as YAML. The name counts when the plan gives itself none.
func (c *Client) ApplyPlan(ctx context.Context, name, text string) (workqueue.AppliedPlan, error) {
	var out workqueue.AppliedPlan
	err := c.call(ctx, http.MethodPost, "/plans?"+url.Values{"name": {name}}.Encode(), "application/yaml",
		strings.NewReader(text), &out)
	return out, err
}

// Plans lists plans on record by name. An empty text means the first page.
func (c *Client) Plans(ctx context.Context, after string, limit int) (api.PlanList, error) {
	query := url.Values{"limit": {strconv.Itoa(limit)}}
	setUnlessEmpty(query, "after", after)
	var out api.PlanList
	err := c.call(ctx, http.MethodGet, "/plans?"+query.Encode(), "", nil, &out)
	return out, err
}

// PlanVersions lists the versions of a plan, newest first. Before 0 means the first page.
func (c *Client) PlanVersions(ctx context.Context, name string, before, limit int) (api.PlanVersions, error) {
	var out api.PlanVersions
	err := c.call(ctx, http.MethodGet, fmt.Sprintf("%s/versions?before=%d&limit=%d", planPath(name), before, limit), "",
		nil, &out)
	return out, err
}

// Plan returns one version of a plan; version 0 is the newest.
func (c *Client) Plan(ctx context.Context, name string, version int) (workqueue.PlanView, error) {
	path := planPath(name)
	if version != 0 {
		path = fmt.Sprintf("%s/versions/%d", path, version)
	}
	var out workqueue.PlanView
	err := c.call(ctx, http.MethodGet, path, "", nil, &out)
	return out, err
}

// DeletePlan takes a plan off the record.
func (c *Client) DeletePlan(ctx context.Context, name string) (workqueue.DeletedPlan, error) {
	var out workqueue.DeletedPlan
	err := c.call(ctx, http.MethodDelete, planPath(name), "", nil, &out)
	return out, err
}

func planPath(name string) string { return "/plans/" + segment(name) }
