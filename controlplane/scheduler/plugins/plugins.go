// Package plugins is the scheduler's plugins, one file each, and their ordered
// table. It reads the cluster the scheduler keeps, and storage through what the
// scheduler gives; it writes nothing.
package plugins

import (
	"knarr/controlplane/scheduler/framework"
)

// Table makes every plugin for one scheduler, in the order they are asked,
// with the weights of their scores.
func Table(c *framework.Cluster, s Selectors, v Volumes) []Entry {
	return []Entry{
		{SchedulingGates{}, 0},
		{PrioritySort{}, 0},
		{NodeUnschedulable{}, 0},
		{NodeName{}, 0},
		{&TaintToleration{cluster: c}, 3},
		{&NodeAffinity{}, 2},
		{NodePorts{}, 0},
		{&NodeResourcesFit{cluster: c}, 1},
		{&VolumeRestrictions{Volumes: v, cluster: c}, 0},
		{&NodeVolumeLimits{Volumes: v, cluster: c}, 0},
		{&VolumeBinding{Volumes: v}, 0},
		{&VolumeZone{Volumes: v}, 0},
		{&PodTopologySpread{cluster: c, selectors: s}, 2},
		{&InterPodAffinity{cluster: c}, 2},
		{DynamicResources{}, 0},
		{NodeResourcesBalancedAllocation{}, 1},
		{&ImageLocality{cluster: c}, 1},
		{NodeDeclaredFeatures{}, 0},
	}
}

// An Entry is a plugin and the weight of its score.
type Entry struct {
	framework.Plugin
	Weight int64
}
