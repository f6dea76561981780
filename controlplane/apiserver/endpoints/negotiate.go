package endpoints

import (
	"net/http"
	"sort"
	"strconv"
	"strings"
)

type format int

const (
	formatJSON format = iota
	formatYAML
	formatProtobuf
)

const (
	typeJSON     = "application/json"
	typeYAML     = "application/yaml"
	typeProtobuf = "application/vnd.kubernetes.protobuf"
)

// An output is what the client wants to read.
type output struct {
	format format
	pretty bool
	// as is "", "Table", "PartialObjectMetadata" or
	// "PartialObjectMetadataList", in version of meta.k8s.io.
	as, version string
}

func (o output) contentType() string {
	switch o.format {
	case formatYAML:
		return typeYAML
	case formatProtobuf:
		return typeProtobuf
	}
	return typeJSON
}

// A clause is one alternative of an Accept header.
type clause struct {
	media  string
	params map[string]string
	q      float64
}

func parseAccept(header string) []clause {
	var out []clause
	sorted := true
	for part := range strings.SplitSeq(header, ",") {
		media, rest, _ := strings.Cut(part, ";")
		c := clause{media: strings.ToLower(strings.TrimSpace(media)), q: 1}
		for rest != "" {
			var param string
			param, rest, _ = strings.Cut(rest, ";")
			k, v, _ := strings.Cut(strings.TrimSpace(param), "=")
			v = strings.Trim(v, `"`)
			if k == "q" {
				c.q, _ = strconv.ParseFloat(v, 64)
				sorted = sorted && c.q == 1
				continue
			}
			if c.params == nil {
				c.params = map[string]string{}
			}
			c.params[k] = v
		}
		out = append(out, c)
	}
	if !sorted {
		sort.SliceStable(out, func(i, j int) bool { return out[i].q > out[j].q })
	}
	return out
}

// negotiate reads Accept for this kind: custom objects have no protobuf form,
// but their metadata has.
func (c *call) negotiate(stream bool) (output, error) {
	if c.entry == nil || c.custom == nil {
		return negotiateOf(c.r, stream, c.sub == nil || !plainStatus[c.qualified], false)
	}
	return negotiateOf(c.r, stream, true, true)
}

// plainStatus are the kinds whose subresources have no table.
var plainStatus = map[string]bool{
	"customresourcedefinitions.apiextensions.k8s.io": true, "apiservices.apiregistration.k8s.io": true, "resourceclaims.resource.k8s.io": true,
}

// negotiate reads Accept. Streams have no YAML form.
func negotiate(r *http.Request, stream bool) (output, error) {
	return negotiateOf(r, stream, true, false)
}

// negotiateOf reads Accept for something that can have the form of a table, or
// not, and that has no form but text, or has.
func negotiateOf(r *http.Request, stream, tables, text bool) (output, error) {
	header := r.Header.Get("Accept")
	switch header {
	case "", "*/*", typeJSON, "application/json, */*":
		return output{pretty: pretty(r, nil)}, nil
	case typeProtobuf, "application/vnd.kubernetes.protobuf,application/json", "application/vnd.kubernetes.protobuf, */*":
		if !text {
			return output{format: formatProtobuf}, nil
		}
	}
	if len(r.Header.Values("Accept")) > 1 {
		header = strings.Join(r.Header.Values("Accept"), ",")
	}
	for _, c := range parseAccept(header) {
		var out output
		switch c.media {
		case "*/*", "application/*", typeJSON:
		case typeYAML:
			if stream {
				continue
			}
			out.format = formatYAML
		case typeProtobuf:
			out.format = formatProtobuf
		default:
			continue
		}
		switch as := c.params["as"]; as {
		case "":
			if text && out.format == formatProtobuf {
				continue
			}
		case "Table":
			if out.format == formatProtobuf || !tables {
				continue
			}
			out.as = as
		case "PartialObjectMetadata", "PartialObjectMetadataList":
			out.as = as
		default:
			continue
		}
		if out.as != "" {
			out.version = c.params["v"]
			if c.params["g"] != "meta.k8s.io" || out.version != "v1" && out.version != "v1beta1" {
				continue
			}
		}
		out.pretty = pretty(r, c.params)
		return out, nil
	}
	return output{pretty: pretty(r, nil)}, notAcceptable()
}

// pretty is asked for, or the reader is a person at a terminal or browser.
func pretty(r *http.Request, params map[string]string) bool {
	if v, ok := params["pretty"]; ok {
		return v == "1" || v == "true"
	}
	if strings.Contains(r.URL.RawQuery, "pretty") {
		if v, ok := r.URL.Query()["pretty"]; ok {
			return len(v) == 0 || v[0] != "false" && v[0] != "0"
		}
	}
	agent := r.UserAgent()
	return strings.HasPrefix(agent, "curl") || strings.HasPrefix(agent, "Wget") || strings.HasPrefix(agent, "Mozilla/5.0")
}
