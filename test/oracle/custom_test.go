package oracle

import "maps"

// customs is what the answers about custom kinds' documents are kept under.
const customs = "customdocuments"

// customDocuments are what the server says of itself when it serves a custom kind
// of two versions, one of them with all that a schema may say and with both
// subresources.
func customDocuments() kind {
	const group, crds = "oracle.example.com", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	type object = map[string]any
	of := func(typ string, more object) object {
		out := object{"type": typ}
		maps.Copy(out, more)
		return out
	}
	const open = "x-kubernetes-preserve-unknown-fields"
	spec := of("object", object{
		"description": "What it is.", "x-kubernetes-validations": []any{object{"rule": "self.crew > 0"}},
		"properties": object{
			"crew":  of("integer", object{"minimum": 1, "default": 3}),
			"cargo": of("array", object{"items": of("string", nil), "x-kubernetes-list-type": "set"}),
			"any":   object{open: true}, "port": object{"x-kubernetes-int-or-string": true},
			"pod":   of("object", object{"x-kubernetes-embedded-resource": true, open: true}),
			"none":  of("string", object{"nullable": true}),
			"flags": of("object", object{"additionalProperties": of("string", object{"enum": []any{"red", "blue"}})}),
			"mate":  of("object", object{"oneOf": []any{object{"required": []any{"name"}}, object{"required": []any{"rank"}}}, "properties": object{"name": of("string", nil), "rank": of("string", object{"pattern": "^[a-z]+$"})}}),
		},
	})
	k := kind{name: customs, path: crds, basePath: crds + "/odds." + group, valid: object{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": object{"name": "odds." + group},
		"spec": object{
			"group": group, "scope": "Namespaced",
			"names": object{"plural": "odds", "singular": "odd", "kind": "Odd", "listKind": "OddList", "shortNames": []any{"od"}, "categories": []any{"all"}},
			"versions": []any{
				object{
					"name": "v1", "served": true, "storage": true,
					"schema": object{"openAPIV3Schema": of("object", object{
						"description": "An odd one.", "required": []any{"spec"},
						"properties": object{"spec": spec, "status": of("object", object{"properties": object{"replicas": of("integer", nil)}})},
					})},
					"subresources":             object{"status": object{}, "scale": object{"specReplicasPath": ".spec.crew", "statusReplicasPath": ".status.replicas"}},
					"additionalPrinterColumns": []any{object{"name": "Crew", "type": "integer", "jsonPath": ".spec.crew"}},
				},
				object{"name": "v1beta1", "served": true, "storage": false, "deprecated": true, "schema": object{"openAPIV3Schema": of("object", object{open: true})}},
			},
		},
	}}
	for _, path := range []string{"/openapi/v3/apis/" + group + "/v1", "/openapi/v3/apis/" + group + "/v1beta1", "/openapi/v2"} {
		k.after = append(k.after, request{name: "openapi " + path, method: "GET", path: path, digest: true, until: "com.example.oracle"})
	}
	for _, path := range []string{"/apis", "/apis/" + group, "/apis/" + group + "/v1", "/apis/" + group + "/v1beta1"} {
		k.after = append(k.after, request{name: "GET " + path, method: "GET", path: path, until: group})
	}
	return k
}
