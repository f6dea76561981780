package componentflags

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"
)

// Fields say which flag each field of a configuration file is: flags by the path of the
// field, its names joined by dots.
type Fields struct {
	Kind, APIVersion string
	Flags            map[string]string
	// Fixed are fields that no flag sets, with the only value they have here.
	Fixed map[string]any
}

// shared are the fields that the configurations of both controller managers have, by which
// flags set them.
var shared = map[string]string{
	"Generic.Address":                               "bind-address",
	"Generic.ClientConnection.kubeconfig":           "kubeconfig",
	"Generic.Controllers":                           "controllers",
	"Generic.Debugging.enableContentionProfiling":   "contention-profiling",
	"Generic.Debugging.enableProfiling":             "profiling",
	"Generic.LeaderElection.leaderElect":            "leader-elect",
	"Generic.LeaderElection.leaseDuration":          "leader-elect-lease-duration",
	"Generic.LeaderElection.renewDeadline":          "leader-elect-renew-deadline",
	"Generic.LeaderElection.resourceLock":           "leader-elect-resource-lock",
	"Generic.LeaderElection.resourceName":           "leader-elect-resource-name",
	"Generic.LeaderElection.resourceNamespace":      "leader-elect-resource-namespace",
	"Generic.LeaderElection.retryPeriod":            "leader-elect-retry-period",
	"Generic.Port":                                  "secure-port",
	"KubeCloudShared.AllocateNodeCIDRs":             "allocate-node-cidrs",
	"KubeCloudShared.AllowUntaggedCloud":            "allow-untagged-cloud",
	"KubeCloudShared.CloudProvider.CloudConfigFile": "cloud-config",
	"KubeCloudShared.CloudProvider.Name":            "cloud-provider",
	"KubeCloudShared.ClusterCIDR":                   "cluster-cidr",
	"KubeCloudShared.ClusterName":                   "cluster-name",
	"KubeCloudShared.ConfigureCloudRoutes":          "configure-cloud-routes",
	"KubeCloudShared.NodeMonitorPeriod":             "node-monitor-period",
	"KubeCloudShared.RouteReconciliationPeriod":     "route-reconciliation-period",
	"KubeCloudShared.UseServiceAccountCredentials":  "use-service-account-credentials",
}

// WithShared are the flags of a controller manager's own fields, and those of the fields that
// all controller managers have.
func WithShared(own map[string]string) map[string]string {
	all := maps.Clone(shared)
	maps.Copy(all, own)
	return all
}

// Load sets the flags that a file of the kind says, and that are not given. It is read
// strictly: what is no field, or cannot be set, is an error.
func (x Fields) Load(f *pflag.FlagSet, file string) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("--config: %w", err)
	}
	var doc map[string]any
	if err := yaml.UnmarshalStrict(b, &doc); err != nil {
		return fmt.Errorf("--config: %s: %w", file, err)
	}
	if doc["kind"] != x.Kind || doc["apiVersion"] != x.APIVersion {
		return fmt.Errorf("--config: %s: no kind %q of version %q, but %q of %q", file, x.Kind, x.APIVersion, doc["kind"], doc["apiVersion"])
	}
	delete(doc, "kind")
	delete(doc, "apiVersion")
	if err := x.set(f, "", doc); err != nil {
		return fmt.Errorf("--config: %s: %w", file, err)
	}
	return nil
}

func (x Fields) set(f *pflag.FlagSet, prefix string, doc map[string]any) error {
	for _, name := range slices.Sorted(maps.Keys(doc)) {
		path, value := prefix+name, doc[name]
		if fixed, ok := x.Fixed[path]; ok {
			if value != nil && !same(value, fixed) {
				return fmt.Errorf("%s: is always %v here; remove it", path, fixed)
			}
			continue
		}
		flag, ok := x.Flags[path]
		switch of, isObject := value.(map[string]any); {
		case ok:
			if err := setOne(f, flag, value); err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
		case x.holds(path) && value == nil:
		case x.holds(path) && isObject:
			if err := x.set(f, path+".", of); err != nil {
				return err
			}
		case x.holds(path):
			return fmt.Errorf("%s: is not an object", path)
		default:
			return fmt.Errorf("unknown field %q", path)
		}
	}
	return nil
}

// same compares values as JSON has them.
func same(a, b any) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && string(x) == string(y)
}

// holds says whether a path is that of an object with fields.
func (x Fields) holds(path string) bool {
	for p := range x.Flags {
		if strings.HasPrefix(p, path+".") {
			return true
		}
	}
	for p := range x.Fixed {
		if strings.HasPrefix(p, path+".") {
			return true
		}
	}
	return false
}

// setOne sets a flag that is not given; null and a zero duration or number leave the
// default, as in upstream's files.
func setOne(f *pflag.FlagSet, flag string, value any) error {
	one := f.Lookup(flag)
	if one == nil || one.Changed || value == nil {
		return nil
	}
	kind := one.Value.Type()
	var text string
	switch v := value.(type) {
	case string:
		if kind == "bool" || strings.HasPrefix(kind, "int") || strings.HasPrefix(kind, "float") {
			return fmt.Errorf("%q is not of the type %s", v, kind)
		}
		text = v
	case bool:
		if kind != "bool" {
			return fmt.Errorf("%v is not of the type %s", v, kind)
		}
		text = fmt.Sprint(v)
	case float64:
		if !strings.HasPrefix(kind, "int") && !strings.HasPrefix(kind, "float") {
			return fmt.Errorf("%v is not of the type %s", v, kind)
		}
		text = fmt.Sprint(v)
	case []any:
		if kind != "stringSlice" {
			return fmt.Errorf("is not of the type %s", kind)
		}
		var all []string
		for _, e := range v {
			all = append(all, fmt.Sprint(e))
		}
		text = strings.Join(all, ",")
	default:
		return fmt.Errorf("is not of the type %s", kind)
	}
	if zero(kind, text) {
		return nil
	}
	return f.Set(flag, text)
}

func zero(kind, text string) bool {
	return text == "" || kind == "duration" && (text == "0s" || text == "0") || kind != "string" && text == "0"
}

// Show is the configuration that the flags say, as a file of the kind would.
func (x Fields) Show(f *pflag.FlagSet) map[string]any {
	out := map[string]any{"kind": x.Kind, "apiVersion": x.APIVersion}
	put := func(path string, value any) {
		at := out
		names := strings.Split(path, ".")
		for _, name := range names[:len(names)-1] {
			below, ok := at[name].(map[string]any)
			if !ok {
				below = map[string]any{}
				at[name] = below
			}
			at = below
		}
		at[names[len(names)-1]] = value
	}
	for path, flag := range x.Flags {
		if one := f.Lookup(flag); one != nil {
			put(path, valueOf(one))
		}
	}
	for path, value := range x.Fixed {
		put(path, value)
	}
	return out
}

// valueOf is a flag's value as JSON has it.
func valueOf(one *pflag.Flag) any {
	switch kind := one.Value.Type(); {
	case kind == "stringSlice":
		if s, ok := one.Value.(pflag.SliceValue); ok {
			return s.GetSlice()
		}
	case kind == "bool", strings.HasPrefix(kind, "int"), strings.HasPrefix(kind, "float"):
		var v any
		if json.Unmarshal([]byte(one.Value.String()), &v) == nil && !reflect.ValueOf(v).IsZero() {
			return v
		}
		if kind == "bool" {
			return false
		}
		return 0
	}
	return one.Value.String()
}
