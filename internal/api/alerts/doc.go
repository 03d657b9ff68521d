// Package alerts is the routes of alerts: who is told what a person must see to.
package alerts
