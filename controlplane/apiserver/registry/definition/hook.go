package definition

import (
	"fmt"
	"net/url"
	"strings"

	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// URLFaults says what is wrong with a webhook's address, of admission or of
// conversion.
func URLFaults(text string, at *field.Path) (faults field.ErrorList) {
	const form = "; desired format: https://host[/path]"
	invalid := func(value, msg string) { faults = append(faults, field.Invalid(at, value, msg)) }
	u, err := url.Parse(text)
	if err != nil {
		return field.ErrorList{field.Required(at, "url must be a valid URL: "+err.Error()+form)}
	}
	if u.Scheme != "https" {
		invalid(u.Scheme, "'https' is the only allowed URL scheme"+form)
	}
	if u.Host == "" {
		invalid(u.Host, "host must be specified"+form)
	}
	if u.User != nil {
		invalid(u.User.String(), "user information is not permitted in the URL")
	}
	if u.Fragment != "" {
		invalid(u.Fragment, "fragments are not permitted in the URL")
	}
	if u.RawQuery != "" {
		invalid(u.RawQuery, "query parameters are not permitted in the URL")
	}
	return faults
}

// ServiceFaults says what is wrong with the Service a webhook is behind. Upstream
// hands name and namespace over in the wrong order, and so the paths of what is
// missing are swapped here, too.
func ServiceFaults(namespace, name string, port int32, path *string, at *field.Path) (faults field.ErrorList) {
	if namespace == "" {
		faults = append(faults, field.Required(at.Child("name"), ""))
	}
	if name == "" {
		faults = append(faults, field.Required(at.Child("namespace"), ""))
	}
	if msgs := utilvalidation.IsValidPortNum(int(port)); msgs != nil {
		faults = append(faults, field.Invalid(at.Child("port"), port, "port is not valid: "+strings.Join(msgs, ", ")))
	}
	if path != nil {
		faults = append(faults, pathFaults(*path, at.Child("path"))...)
	}
	return faults
}

func pathFaults(path string, at *field.Path) (faults field.ErrorList) {
	invalid := func(msg string) { faults = append(faults, field.Invalid(at, path, msg)) }
	switch path {
	case "", "/":
		return nil
	case "//":
		invalid("segment[0] may not be empty")
		return faults
	}
	if path[0] != '/' {
		invalid("must start with a '/'")
	}
	for i, step := range strings.Split(strings.TrimSuffix(path[1:], "/"), "/") {
		if step == "" {
			invalid(fmt.Sprintf("segment[%d] may not be empty", i))
			continue
		}
		for _, msg := range utilvalidation.IsDNS1123Subdomain(step) {
			invalid(fmt.Sprintf("segment[%d]: %v", i, msg))
		}
	}
	return faults
}
