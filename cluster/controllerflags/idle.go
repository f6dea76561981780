package controllerflags

import (
	"time"

	"knarr/cluster/componentflags"
)

const (
	watched = "changes are watched, nothing waits for a period"
	ofCloud = "is the cloud controller manager's, a program of its own"
	noDRA   = "devices are not allocated by claims here"
)

// idle are upstream's flags that do nothing here.
var idle = []componentflags.Idle{
	{Name: "allow-untagged-cloud", Default: false, Why: ofCloud},
	{Name: "attach-detach-reconcile-sync-period", Default: time.Minute, Why: watched},
	{Name: "cloud-config", Default: "", Why: ofCloud},
	{Name: "concurrent-device-taint-eviction-syncs", Default: 8, Why: noDRA},
	{Name: "concurrent-resourceclaim-syncs", Default: 50, Why: noDRA},
	{Name: "concurrent-service-syncs", Default: 1, Why: ofCloud},
	{Name: "configure-cloud-routes", Default: true, Why: ofCloud},
	{Name: "controller-shutdown-timeout", Default: 10 * time.Second, Why: "controllers end as soon as what they are at has ended"},
	{Name: "controller-start-interval", Default: time.Duration(0), Why: "controllers start at once"},
	{Name: "disable-attach-detach-reconcile-sync", Default: false, Why: watched},
	{Name: "enable-leader-migration", Default: false, Why: "the controllers that its Lease hands over by default are the cloud controller manager's already"},
	{Name: "external-cloud-volume-plugin", Default: "", Why: "volumes are their CSI driver's"},
	{Name: "flex-volume-plugin-dir", Default: "/usr/libexec/kubernetes/kubelet-plugins/volume/exec/", Why: "there are no FlexVolume plugins"},
	{Name: "leader-migration-config", Default: "", Why: "is of --enable-leader-migration"},
	{Name: "min-resync-period", Default: 12 * time.Hour, Why: watched},
	{Name: "namespace-sync-period", Default: 5 * time.Minute, Why: watched},
	{Name: "node-sync-period", Default: time.Duration(0), Why: "upstream's does nothing either"},
	{Name: "pvclaimbinder-sync-period", Default: 15 * time.Second, Why: watched},
	{Name: "route-reconciliation-period", Default: 10 * time.Second, Why: ofCloud},
}
