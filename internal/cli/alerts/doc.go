// Package alerts has the commands about alerts.
package alerts
