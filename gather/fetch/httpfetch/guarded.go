package httpfetch

import (
	"context"
	"errors"
	"net/http"
	"net/url"
)

// Transport returns what sends requests that are no step's by the same rules: to public addresses, and to those of this
// machine and of private networks that the operator's file allows, looked at when the connection is made. It follows no
// redirects and carries no secrets by itself; who reads the response bounds it.
func (c *Client) Transport() http.RoundTripper { return c.transports }

// Explain says why there was no response to a request by Transport, in words of our own: the error itself has the URL
// in it. passes reports whether it may be otherwise the next time.
func Explain(err error) (why string, passes bool) {
	if _, refused := errors.AsType[*addressError](err); refused {
		return (&addressError{}).Error(), false
	}
	if redirect := refusedRedirect(err); redirect != nil {
		return redirect.Error(), false
	}
	if timedOut(err) || errors.Is(err, context.DeadlineExceeded) {
		return "it did not answer in time", true
	}
	if why, bad := untrusted(err); bad {
		return why, false
	}
	return broken(err), true
}

// CheckURL says why nothing is asked for at a URL, as far as that shows without looking up its name.
func (c *Client) CheckURL(u *url.URL) error { return c.transports.checkLiteral(u) }
