// Package endpoints has the commands about endpoints: what they do, their dead letters and messages in quarantine.
package endpoints
