package nodelifecycle

import (
	"cmp"
	"time"
)

// Config is when nodes count as silent, and how fast pods leave those that are. A zero
// value means its default.
type Config struct {
	// MonitorGracePeriod is how long a node may be silent, StartupGracePeriod how long a
	// new one may take to report its status for the first time. Default 50s and 1m.
	MonitorGracePeriod, StartupGracePeriod time.Duration
	// MonitorPeriod is how often a node that is not ready is looked at. Default 5s.
	MonitorPeriod time.Duration
	// EvictionRate is on how many nodes of a zone per second pods are made to leave,
	// SecondaryEvictionRate the same in a large zone that is mostly down; below 0: on
	// none. Default 0.1 and 0.01.
	EvictionRate, SecondaryEvictionRate float32
	// UnhealthyZoneThreshold is the part of a zone's nodes, of three at least, which is
	// down when the zone counts as mostly down; below 0: any. Default 0.55.
	UnhealthyZoneThreshold float32
	// LargeClusterSizeThreshold is the number of nodes above which a zone is large; below
	// 0: all are. Default 50.
	LargeClusterSizeThreshold int
}

func (c *Config) setDefaults() {
	c.MonitorGracePeriod = cmp.Or(c.MonitorGracePeriod, 50*time.Second)
	c.StartupGracePeriod = cmp.Or(c.StartupGracePeriod, time.Minute)
	c.MonitorPeriod = cmp.Or(c.MonitorPeriod, 5*time.Second)
	c.EvictionRate, c.SecondaryEvictionRate = cmp.Or(c.EvictionRate, 0.1), cmp.Or(c.SecondaryEvictionRate, 0.01)
	c.UnhealthyZoneThreshold = cmp.Or(c.UnhealthyZoneThreshold, 0.55)
	c.LargeClusterSizeThreshold = cmp.Or(c.LargeClusterSizeThreshold, 50)
}
