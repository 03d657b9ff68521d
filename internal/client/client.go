// Package client speaks the HTTP API of tranche serve: what the command line needs, and no more.
//
// Answers are the documents of package api. Errors to tell apart are [ProblemError], an answer that says no,
// [UnreachableError], nobody there, and [SilentError], somebody there who does not answer. Uploads and exports stream;
// an export that broke off is an error of its reader.
//
// It keeps no state and retries nothing. A [Client] is safe for concurrent use.
package client

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"mime/multipart"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/workqueue"
)

// DefaultURL is where tranche serve listens unless told otherwise.
const DefaultURL = "http://" + api.DefaultListen

const dialTimeout = 5 * time.Second

// Client talks to one server.
type Client struct {
	base    *url.URL
	actor   string
	timeout time.Duration // 0: each operation's own
	http    *http.Client
	token   string
}

// Option is a setting of a client.
type Option func(*Client)

// WithToken makes every request one of the holder's of a token.
func WithToken(secret string) Option { return func(c *Client) { c.token = secret } }

// New returns a client of the server at base, like DefaultURL. The actor is named in the audit log. The timeout is how
// long an answer may take to begin, and to end if it is one document; 0 is what the operations take at the most.
func New(base, actor string, timeout time.Duration, options ...Option) (*Client, error) {
	if timeout < 0 {
		return nil, fmt.Errorf("the timeout is %s; it must not be negative", timeout)
	}
	parsed, err := url.Parse(strings.TrimSuffix(base, "/"))
	if err != nil || parsed.Host == "" || parsed.Scheme != "http" && parsed.Scheme != "https" {
		return nil, fmt.Errorf("%q is not the URL of a server, like %s", base, DefaultURL)
	}
	transport := &http.Transport{
		Proxy:       http.ProxyFromEnvironment,
		DialContext: (&net.Dialer{Timeout: dialTimeout}).DialContext,
	}
	c := &Client{base: parsed, actor: actor, timeout: timeout, http: &http.Client{
		Transport: transport,
		// Nothing of ours redirects, and a token is for the server that it was meant for.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	for _, option := range options {
		option(c)
	}
	return c, nil
}

// Start sends the items and starts a run of them.
func (c *Client) Start(ctx context.Context, settings api.RunSettings, items io.Reader) (api.Started, error) {
	var head bytes.Buffer
	form := multipart.NewWriter(&head)
	part, err := form.CreateFormField(api.PartRun)
	if err == nil {
		err = json.NewEncoder(part).Encode(settings)
	}
	if err == nil {
		_, err = form.CreateFormFile(api.PartItems, "items")
	}
	if err != nil {
		return api.Started{}, fmt.Errorf("write the settings of the run: %w", err)
	}
	tail := strings.NewReader("\r\n--" + form.Boundary() + "--\r\n")
	var out api.Started
	err = c.callWithin(ctx, uploadWait, http.MethodPost, "/runs", form.FormDataContentType(),
		io.MultiReader(&head, items, tail), &out)
	return out, err
}

// Runs lists the newest runs.
func (c *Client) Runs(ctx context.Context, limit int) (api.RunList, error) {
	var out api.RunList
	err := c.call(ctx, http.MethodGet, fmt.Sprintf("/runs?limit=%d", limit), "", nil, &out)
	return out, err
}

// Run returns one run.
func (c *Client) Run(ctx context.Context, ref string) (api.RunDocument, error) {
	var out api.RunDocument
	err := c.call(ctx, http.MethodGet, runPath(ref, ""), "", nil, &out)
	return out, err
}

// Errors returns the groups of failed items.
func (c *Client) Errors(ctx context.Context, ref string) (api.ErrorGroups, error) {
	var out api.ErrorGroups
	err := c.call(ctx, http.MethodGet, runPath(ref, "/errors"), "", nil, &out)
	return out, err
}

// FailedItems streams each failed item as a line of JSON. The caller closes the stream.
func (c *Client) FailedItems(ctx context.Context, ref string) (io.ReadCloser, error) {
	return c.stream(ctx, runPath(ref, "/errors?all=true"))
}

// Export streams the items in the format ndjson or csv. The caller closes the stream.
func (c *Client) Export(ctx context.Context, ref, format string, states []string) (io.ReadCloser, error) {
	query := url.Values{"format": {format}, "state": states}
	return c.stream(ctx, runPath(ref, "/export?"+query.Encode()))
}

// Item returns the items of one key.
func (c *Client) Item(ctx context.Context, ref, key string) (api.KeyItems, error) {
	var out api.KeyItems
	err := c.call(ctx, http.MethodGet, runPath(ref, "/items/"+segment(key)), "", nil, &out)
	return out, err
}

// Rerun sets items going again.
func (c *Client) Rerun(ctx context.Context, ref string, settings api.RerunSettings) (api.Rerun, error) {
	var out api.Rerun
	err := c.post(ctx, runPath(ref, "/rerun"), settings, &out)
	return out, err
}

// Reset takes parts of a step back, to be made again.
func (c *Client) Reset(ctx context.Context, ref string, settings api.ResetSettings) (api.Reset, error) {
	var out api.Reset
	err := c.post(ctx, runPath(ref, "/reset"), settings, &out)
	return out, err
}

// Endpoint says who listens on one endpoint, and the work there is.
func (c *Client) Endpoint(ctx context.Context, name string) (api.Endpoint, error) {
	var out api.Endpoint
	err := c.call(ctx, http.MethodGet, "/endpoints/"+segment(name), "", nil, &out)
	return out, err
}

// SetEndpoint changes an endpoint's settings while its services run.
func (c *Client) SetEndpoint(
	ctx context.Context, name string, set api.EndpointSettings,
) (workqueue.EndpointSetting, error) {
	var out workqueue.EndpointSetting
	err := c.post(ctx, "/endpoints/"+segment(name)+"/settings", set, &out)
	return out, err
}

// Endpoints says who listens, and the work there is.
func (c *Client) Endpoints(ctx context.Context) (api.EndpointList, error) {
	var out api.EndpointList
	err := c.call(ctx, http.MethodGet, "/endpoints", "", nil, &out)
	return out, err
}

// Doctor has the server check the invariants.
func (c *Client) Doctor(ctx context.Context) (workqueue.Report, error) {
	var out workqueue.Report
	err := c.callWithin(ctx, doctorWait, http.MethodGet, "/doctor", "", nil, &out)
	return out, err
}

// Info says what the server is.
func (c *Client) Info(ctx context.Context) (api.Info, error) {
	var out api.Info
	err := c.call(ctx, http.MethodGet, "/info", "", nil, &out)
	return out, err
}

func runPath(ref, rest string) string { return "/runs/" + segment(ref) + rest }

// segment is a name as part of a path. One of dots only would be taken for a way up.
func segment(name string) string {
	if name == "." || name == ".." {
		return strings.ReplaceAll(name, ".", "%2E")
	}
	return url.PathEscape(name)
}
