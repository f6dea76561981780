package alone

import (
	"time"

	"knarr/cluster/componentflags"
)

const (
	noWebhooks   = "no webhooks are served here, of a cloud provider or anybody else"
	cloudWatched = "changes are watched, nothing waits for a period"
)

// cloudIdle are flags of upstream's cloud-controller-manager that do nothing here.
var cloudIdle = []componentflags.Idle{
	{Name: "cidr-allocator-type", Default: "RangeAllocator", Why: "kube-controller-manager gives nodes their ranges"},
	{Name: "controller-start-interval", Default: time.Duration(0), Why: "controllers start at once"},
	{Name: "enable-leader-migration", Default: false, Why: "all controllers run under the one Lease that --leader-elect-resource-name names", Only: true},
	{Name: "external-cloud-volume-plugin", Default: "", Why: "volumes are their CSI driver's"},
	{Name: "leader-migration-config", Default: "", Why: "is of --enable-leader-migration"},
	{Name: "min-resync-period", Default: 12 * time.Hour, Why: cloudWatched},
	{Name: "node-sync-period", Default: time.Duration(0), Why: "upstream's does nothing either"},
	{Name: "webhook-bind-address", Default: "0.0.0.0", Why: noWebhooks},
	{Name: "webhook-cert-dir", Default: "", Why: noWebhooks},
	{Name: "webhook-disable-http2-serving", Default: false, Why: noWebhooks},
	{Name: "webhook-secure-port", Default: 10260, Why: noWebhooks},
	{Name: "webhook-tls-cert-file", Default: "", Why: noWebhooks},
	{Name: "webhook-tls-cipher-suites", Default: []string{}, Why: noWebhooks},
	{Name: "webhook-tls-curve-preferences", Default: []string{}, Why: noWebhooks},
	{Name: "webhook-tls-min-version", Default: "", Why: noWebhooks},
	{Name: "webhook-tls-private-key-file", Default: "", Why: noWebhooks},
	{Name: "webhook-tls-sni-cert-key", Default: []string{}, Why: noWebhooks},
	{Name: "webhooks", Default: []string{}, Why: noWebhooks, Only: true},
}
