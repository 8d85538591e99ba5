# List the help topics of installed packages, one a line, for rdocs.py beside this script.
#
#     Rscript rdocs.R OUTPUT.tsv [PACKAGE ...]
#
# Without names, all installed packages are listed. Columns, separated by tabs: package, name of the
# help page, title, aliases, links of the section "See also", links of all other sections but the
# examples, keywords with concepts. Lists are separated by semicolons. A link is OPTION|TEXT, as in
# \link[OPTION]{TEXT}.

tag_of <- function(node) {
  tag <- attr(node, "Rd_tag")
  if (is.null(tag)) "" else tag
}

plain <- function(node) {
  trimws(gsub("[[:space:]]+", " ", enc2utf8(paste(unlist(node), collapse = ""))))
}

links_in <- function(node) {
  if (!is.list(node)) {
    return(character())
  }
  inner <- unlist(lapply(node, links_in))
  if (!(tag_of(node) %in% c("\\link", "\\linkS4class"))) {
    return(inner)
  }
  option <- attr(node, "Rd_option")
  c(paste0(if (is.null(option)) "" else plain(option), "|", plain(node)), inner)
}

joined <- function(items) {
  items <- gsub(";", ",", items[nzchar(items)], fixed = TRUE)
  paste(unique(items), collapse = ";")
}

# One help page as a line.
topic <- function(package, rd) {
  tags <- vapply(rd, tag_of, "")
  texts <- function(tag) vapply(rd[tags == tag], plain, "")
  links <- function(chosen) unlist(lapply(rd[chosen], links_in))
  paste(
    package, plain(rd[tags == "\\name"]), plain(rd[tags == "\\title"]),
    joined(texts("\\alias")),
    joined(links(tags == "\\seealso")),
    joined(links(!(tags %in% c("\\title", "\\seealso", "\\examples")))),
    joined(c(texts("\\keyword"), texts("\\concept"))),
    sep = "\t"
  )
}

topics_of <- function(package) {
  database <- file.path(find.package(package), "help", package)
  if (!file.exists(paste0(database, ".rdx"))) {
    return(character())
  }
  vapply(tools:::fetchRdDB(database), function(rd) topic(package, rd), "")
}

arguments <- commandArgs(trailingOnly = TRUE)
if (length(arguments) == 0) {
  stop("usage: Rscript rdocs.R OUTPUT.tsv [PACKAGE ...]", call. = FALSE)
}
packages <- arguments[-1]
if (length(packages) == 0) {
  packages <- sort(unique(rownames(installed.packages())))
}
lines <- unlist(lapply(packages, topics_of), use.names = FALSE)
writeLines(lines, arguments[1], useBytes = TRUE)
cat("wrote", length(lines), "topics of", length(packages), "packages to", arguments[1], "\n")
