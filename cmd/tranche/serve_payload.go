package main

import (
	"fmt"

	"github.com/tranchehq/tranche/workqueue"
)

// What the largest message of the embedded NATS may be.
const (
	leastPayload = 64 << 10
	mostPayload  = 64 << 20
)

// maxPayload is the largest message of the embedded NATS in bytes.
func (s *serveCommand) maxPayload() (int, error) {
	var size workqueue.Bytes
	if err := size.UnmarshalText([]byte(s.MaxPayload)); err != nil {
		return 0, fmt.Errorf("--nats-max-payload %.40q: %w", s.MaxPayload, err)
	}
	if size < leastPayload || size > mostPayload {
		return 0, fmt.Errorf("--nats-max-payload is %v; it must be within %v to %v", size, workqueue.Bytes(leastPayload),
			workqueue.Bytes(mostPayload))
	}
	return int(size), nil
}
