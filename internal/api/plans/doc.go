// Package plans is the routes of plans on record.
package plans
