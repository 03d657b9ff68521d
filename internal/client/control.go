package client

import (
	"context"

	"github.com/tranchehq/tranche/internal/api"
)

// Pause holds a run.
func (c *Client) Pause(ctx context.Context, ref string, settings api.ControlSettings) (api.Controlled, error) {
	return c.control(ctx, ref, "pause", settings)
}

// Resume lets a run go on.
func (c *Client) Resume(ctx context.Context, ref string, settings api.ResumeSettings) (api.Controlled, error) {
	return c.control(ctx, ref, "resume", settings)
}

// Approve lets the items go that a canary held back.
func (c *Client) Approve(ctx context.Context, ref string, settings api.ControlSettings) (api.Controlled, error) {
	return c.control(ctx, ref, "approve", settings)
}

// Cancel stops a run.
func (c *Client) Cancel(ctx context.Context, ref string, settings api.ControlSettings) (api.Controlled, error) {
	return c.control(ctx, ref, "cancel", settings)
}

// All does to every run what action says: pause, resume, approve or cancel.
func (c *Client) All(ctx context.Context, action string, settings api.ControlSettings) (api.Controlled, error) {
	var out api.Controlled
	err := c.post(ctx, "/runs/"+action, api.ControlAll{ControlSettings: settings, All: true}, &out)
	return out, err
}

// SetRun changes settings of a run while it runs.
func (c *Client) SetRun(ctx context.Context, ref string, changes api.RunChanges) (api.ChangedRun, error) {
	var out api.ChangedRun
	err := c.post(ctx, runPath(ref, "/settings"), changes, &out)
	return out, err
}

func (c *Client) control(ctx context.Context, ref, action string, settings any) (api.Controlled, error) {
	var out api.Controlled
	err := c.post(ctx, runPath(ref, "/"+action), settings, &out)
	return out, err
}
