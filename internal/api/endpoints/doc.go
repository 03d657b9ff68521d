// Package endpoints is the routes of endpoints, and of what could not be delivered: dead letters, and messages in
// quarantine.
package endpoints
