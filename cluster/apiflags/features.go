package apiflags

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"

	"knarr/controlplane/apiserver/registry"
	"knarr/internal/features"
)

// turnedOn are the features asked for, as upstream reads them. What is not as by
// default here cannot be.
func turnedOn(asked []string) (features.Set, error) {
	on, err := features.Parse(asked)
	if err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(on)) {
		if is := features.Gates()[name].Default; is != on[name] && !slices.Contains(features.Settable, name) {
			return nil, fmt.Errorf("--feature-gates: %s is always %v here: leave it out", name, is)
		}
	}
	for name, needed := range features.Needs {
		if on[name] && !on[needed] {
			return nil, fmt.Errorf("%s is enabled, but depends on features that are disabled: [%s]", name, needed)
		}
	}
	return on, nil
}

// optionalVersions are those that are served only when they are asked for.
func optionalVersions() (names []string) {
	for _, r := range registry.Optional {
		if name := r.GVR().GroupVersion().String(); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// versions are the APIs asked for that are not served by themselves. All others that
// are served here always are.
func versions(asked map[string]string) (also []schema.GroupVersion, err error) {
	served, optional, groups := map[schema.GroupVersion]bool{}, map[schema.GroupVersion]bool{}, map[string]bool{}
	for _, r := range registry.Resources {
		served[r.GVR().GroupVersion()] = true
		groups[r.GVR().Group] = true
	}
	for _, r := range registry.Optional {
		optional[r.GVR().GroupVersion()] = true
		groups[r.GVR().Group] = true
	}
	for _, key := range slices.Sorted(maps.Keys(asked)) {
		value := asked[key]
		want := true
		if value != "" {
			if want, err = strconv.ParseBool(value); err != nil {
				return nil, fmt.Errorf("invalid value %s=%s", key, value)
			}
		}
		have := false
		parts := strings.Split(key, "/")
		switch {
		case key == "api/ga":
			have = true
		case key == "api/alpha" || key == "api/beta":
		case key == "api/all":
			return nil, fmt.Errorf("--runtime-config: %s: APIs that are not stable are not built, and stable ones are always served: leave it out", key)
		case key == "v1" || key == "api/v1":
			have = true
		case len(parts) < 2 || len(parts) > 3:
			return nil, fmt.Errorf("runtime-config invalid key %s", key)
		default:
			gv := schema.GroupVersion{Group: parts[0], Version: parts[1]}
			if !groups[gv.Group] {
				return nil, fmt.Errorf("unknown api groups %s", strings.Join(parts[:2], "/"))
			}
			if optional[gv] {
				if want {
					also = append(also, gv)
				}
				continue
			}
			if have = served[gv]; !have && !scheme.Scheme.IsVersionRegistered(gv) {
				return nil, fmt.Errorf("group version %s that has not been registered", gv)
			}
		}
		if have != want {
			return nil, fmt.Errorf("--runtime-config: %s is always %v here: leave it out", key, have)
		}
	}
	return also, nil
}
