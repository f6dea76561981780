package registry

// Resources is the whole API in discovery order: group versions in the order
// upstream lists them, kinds in alphabetical order of their plural.
var Resources = []Resource{
	configMaps,
	priorityClasses,
}
