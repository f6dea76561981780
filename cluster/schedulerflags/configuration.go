package schedulerflags

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"knarr/cluster/componentflags"
)

// A Configuration is a KubeSchedulerConfiguration, in so far as it is about
// the process: plugins are those of upstream's default profile.
type Configuration struct {
	metav1.TypeMeta  `json:",inline"`
	LeaderElection   LeaderElection     `json:"leaderElection"`
	ClientConnection clientConnection   `json:"clientConnection"`
	Profiles         []schedulerProfile `json:"profiles"`
	Extenders        []json.RawMessage  `json:"extenders"`

	EnableProfiling           *bool `json:"enableProfiling"`
	EnableContentionProfiling *bool `json:"enableContentionProfiling"`

	PodInitialBackoffSeconds *int64 `json:"podInitialBackoffSeconds"`
	PodMaxBackoffSeconds     *int64 `json:"podMaxBackoffSeconds"`
	Parallelism              *int32 `json:"parallelism"`
	PercentageOfNodesToScore *int32 `json:"percentageOfNodesToScore"`
	DelayCacheUntilActive    bool   `json:"delayCacheUntilActive"`
}

// LeaderElection is what the file says of taking turns.
type LeaderElection struct {
	LeaderElect       *bool           `json:"leaderElect"`
	LeaseDuration     metav1.Duration `json:"leaseDuration"`
	RenewDeadline     metav1.Duration `json:"renewDeadline"`
	RetryPeriod       metav1.Duration `json:"retryPeriod"`
	ResourceLock      string          `json:"resourceLock"`
	ResourceName      string          `json:"resourceName"`
	ResourceNamespace string          `json:"resourceNamespace"`
}

type clientConnection struct {
	Kubeconfig         string  `json:"kubeconfig"`
	AcceptContentTypes string  `json:"acceptContentTypes"`
	ContentType        string  `json:"contentType"`
	QPS                float32 `json:"qps"`
	Burst              int32   `json:"burst"`
}

type schedulerProfile struct {
	SchedulerName            string            `json:"schedulerName"`
	PercentageOfNodesToScore *int32            `json:"percentageOfNodesToScore"`
	Plugins                  map[string]any    `json:"plugins"`
	PluginConfig             []json.RawMessage `json:"pluginConfig"`
}

// read takes a file's settings. It refuses plugins, their settings and extenders, and
// says which others change nothing; in a server those are more.
func (c *Configuration) read(file string, ofServer bool) error {
	if err := componentflags.ReadConfig(file, "KubeSchedulerConfiguration", "kubescheduler.config.k8s.io/v1", c, &c.Kind, &c.APIVersion); err != nil {
		return err
	}
	var errs []error
	bad := func(when bool, field, why string) {
		if when {
			errs = append(errs, fmt.Errorf("--config: %s: %s: %s", file, field, why))
		}
	}
	bad(len(c.Extenders) > 0, "extenders", "there are none here; remove them")
	bad(c.PodInitialBackoffSeconds != nil && *c.PodInitialBackoffSeconds != 1, "podInitialBackoffSeconds", "is 1 here; remove it")
	bad(c.PodMaxBackoffSeconds != nil && *c.PodMaxBackoffSeconds != 10, "podMaxBackoffSeconds", "is 10 here; remove it")
	seen := map[string]bool{}
	for i, p := range c.Profiles {
		at := fmt.Sprintf("profiles[%d].", i)
		bad(len(p.Plugins) > 0, at+"plugins", "every profile has the default plugins here; remove it")
		bad(len(p.PluginConfig) > 0, at+"pluginConfig", "every plugin has its default settings here; remove it")
		bad(p.SchedulerName == "" && len(c.Profiles) > 1, at+"schedulerName", "is needed to tell profiles apart")
		bad(seen[p.SchedulerName], at+"schedulerName", fmt.Sprintf("%q is another profile's", p.SchedulerName))
		seen[p.SchedulerName] = true
	}
	if idle := c.withoutEffect(ofServer); len(idle) > 0 {
		slog.Warn("--config: these settings change nothing here", "file", file, "fields", strings.Join(idle, ", "))
	}
	return errors.Join(errs...)
}

// withoutEffect are the fields that are set and change nothing: every feasible node is
// scored. A server takes turns with
// others as it needs, and has one way to the API server.
func (c *Configuration) withoutEffect(ofServer bool) (fields []string) {
	percent := c.PercentageOfNodesToScore != nil
	for _, p := range c.Profiles {
		percent = percent || p.PercentageOfNodesToScore != nil
	}
	for field, is := range map[string]bool{
		"parallelism": c.Parallelism != nil, "percentageOfNodesToScore": percent, "delayCacheUntilActive": c.DelayCacheUntilActive,
		"enableContentionProfiling": c.EnableContentionProfiling != nil, "clientConnection.qps": ofServer && c.ClientConnection.QPS != 0,
		"clientConnection.burst": ofServer && c.ClientConnection.Burst != 0, "clientConnection.contentType": ofServer && c.ClientConnection.ContentType != "",
		"clientConnection.acceptContentTypes": c.ClientConnection.AcceptContentTypes != "",
		"clientConnection.kubeconfig":         ofServer && c.ClientConnection.Kubeconfig != "",
		"leaderElection":                      ofServer && c.LeaderElection != LeaderElection{},
		"enableProfiling":                     ofServer && c.EnableProfiling != nil,
	} {
		if is {
			fields = append(fields, field)
		}
	}
	slices.Sort(fields)
	return fields
}

// names are those of the profiles; none for the default's alone.
func (c *Configuration) names() (names []string) {
	for _, p := range c.Profiles {
		if p.SchedulerName != "" {
			names = append(names, p.SchedulerName)
		}
	}
	return names
}
