// Command definitions writes the CustomResourceDefinitions of the Gateway API's standard
// channel as JSON, one a line, to be embedded. It reads them from the folder of that module
// that it is given, and writes to its output.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"sigs.k8s.io/yaml"
)

func main() {
	if err := write(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func write(dir string) error {
	files, err := filepath.Glob(filepath.Join(dir, "gateway.networking.k8s.io_*.yaml"))
	if err == nil && len(files) == 0 {
		err = fmt.Errorf("%s has no definitions", dir)
	}
	if err != nil {
		return err
	}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if !bytes.Contains(text, []byte("kind: CustomResourceDefinition")) {
			continue // the admission policy, which would keep users from the experimental channel
		}
		object, err := yaml.YAMLToJSON(text)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		var line map[string]any
		if err := json.Unmarshal(object, &line); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		delete(line, "status")
		if object, err = json.Marshal(line); err != nil {
			return err
		}
		if _, err := os.Stdout.Write(append(object, '\n')); err != nil {
			return err
		}
	}
	return nil
}
