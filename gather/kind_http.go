package gather

// HTTP is how an external service is asked.
type HTTP struct{}

// host is the host of the service, with its port when the URL has one.
func (h *HTTP) host() string { return "" }
