// Package credentialprovider asks programs of the node's administrator, upstream's
// credential provider plugins, for what images may be pulled with. It reads a
// CredentialProviderConfig, service accounts and, for plugins that want one, tokens of
// them; it runs the programs and remembers their answers in memory, and writes nothing.
package credentialprovider

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kubeletconfig "k8s.io/kubelet/config/v1"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"knarr/internal/jsonfields"
)

const (
	configKind  = "CredentialProviderConfig"
	configGroup = "kubelet.config.k8s.io"
	// maxConfig bounds one file of the configuration.
	maxConfig = 4 << 20
)

// configVersions are those of the configuration; the fields of the older ones are those
// of v1, but for the attributes of tokens.
var configVersions = []string{"v1", "v1beta1", "v1alpha1"}

// readConfig reads a file, or all *.json, *.yaml and *.yml of a directory in the order
// of their names, and the hash of what was read, as upstream's metric has it.
func readConfig(path string) (*kubeletconfig.CredentialProviderConfig, string, error) {
	files, err := configFiles(path)
	if err != nil {
		return nil, "", err
	}
	all, sum, seen := &kubeletconfig.CredentialProviderConfig{}, sha256.New(), map[string]bool{}
	for _, file := range files {
		b, err := readBounded(file)
		if err != nil {
			return nil, "", fmt.Errorf("unable to read file %q: %w", file, err)
		}
		_ = binary.Write(sum, binary.BigEndian, uint64(len(b))) // a hash takes everything
		sum.Write(b)
		c, err := decodeConfig(b)
		if err != nil {
			return nil, "", fmt.Errorf("error decoding config %q: %w", file, err)
		}
		for _, p := range c.Providers {
			if seen[p.Name] {
				return nil, "", fmt.Errorf("duplicate provider name %q found in configuration file(s)", p.Name)
			}
			seen[p.Name] = true
			all.Providers = append(all.Providers, p)
		}
	}
	return all, fmt.Sprintf("sha256:%x", sum.Sum(nil)), nil
}

func configFiles(path string) ([]string, error) {
	if path == "" {
		return nil, errors.New("credential provider config path is empty")
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("unable to access path %q: %w", path, err)
	}
	if !info.IsDir() {
		return []string{path}, nil
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, fmt.Errorf("unable to read directory %q: %w", path, err)
	}
	var files []string
	for _, e := range entries { // sorted
		if !e.IsDir() && slices.Contains([]string{".json", ".yaml", ".yml"}, filepath.Ext(e.Name())) {
			files = append(files, filepath.Join(path, e.Name()))
		}
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("no configuration files found in directory %q", path)
	}
	return files, nil
}

func readBounded(file string) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxConfig+1))
	if err == nil && len(b) > maxConfig {
		err = fmt.Errorf("larger than %d bytes", maxConfig)
	}
	return b, err
}

// decodeConfig reads one file, in which every field must be known.
func decodeConfig(b []byte) (*kubeletconfig.CredentialProviderConfig, error) {
	j, err := yaml.YAMLToJSONStrict(b)
	if err != nil {
		return nil, err
	}
	var kind metav1.TypeMeta
	if err := kjson.UnmarshalCaseSensitivePreserveInts(j, &kind); err != nil {
		return nil, err
	}
	gvk := schema.FromAPIVersionAndKind(kind.APIVersion, kind.Kind)
	switch {
	case gvk.Kind != configKind:
		return nil, fmt.Errorf("failed to decode %q (wrong Kind)", gvk.Kind)
	case gvk.Group != configGroup:
		return nil, fmt.Errorf("failed to decode CredentialProviderConfig, unexpected Group: %s", gvk.Group)
	case !slices.Contains(configVersions, gvk.Version):
		return nil, fmt.Errorf("no kind %q is registered for version %q", gvk.Kind, gvk.GroupVersion())
	}
	c := &kubeletconfig.CredentialProviderConfig{}
	unknown, err := jsonfields.Decode(j, c)
	if err != nil {
		return nil, err
	}
	for i, u := range unknown {
		unknown[i] = errors.New(u.Error() + jsonfields.Hint(u, c))
	}
	for i, p := range c.Providers {
		if gvk.Version != "v1" && p.TokenAttributes != nil {
			unknown = append(unknown, fmt.Errorf(`unknown field "providers[%d].tokenAttributes"`, i))
		}
	}
	if err := errors.Join(unknown...); err != nil {
		return nil, fmt.Errorf("strict decoding error: %w", err)
	}
	return c, nil
}
