/* One instruction of PTX: opcode with its modifiers, and operands. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "ptx.h"

static const struct {
    const char *name;
    enum ptx_opcode opcode;
} opcodes[] = {
    {"abs", OP_ABS},   {"activemask", OP_ACTIVEMASK}, {"add", OP_ADD},   {"and", OP_AND},   {"atom", OP_ATOM},
    {"bar", OP_BAR},   {"barrier", OP_BAR},           {"bfe", OP_BFE},   {"bfi", OP_BFI},   {"bra", OP_BRA},
    {"brev", OP_BREV}, {"clz", OP_CLZ},               {"cnot", OP_CNOT}, {"cos", OP_COS},   {"copysign", OP_COPYSIGN},
    {"call", OP_CALL},
    {"cvt", OP_CVT},   {"cvta", OP_CVTA},             {"div", OP_DIV},   {"ex2", OP_EX2},   {"exit", OP_EXIT},
    {"fma", OP_FMA},   {"ld", OP_LD},                 {"ldu", OP_LD},    {"lg2", OP_LG2},   {"mad", OP_MAD},
    {"max", OP_MAX},   {"membar", OP_MEMBAR},         {"fence", OP_MEMBAR}, {"min", OP_MIN}, {"mov", OP_MOV},
    {"mul", OP_MUL},   {"neg", OP_NEG},               {"not", OP_NOT},   {"or", OP_OR},     {"popc", OP_POPC},
    {"rcp", OP_RCP},   {"red", OP_RED},               {"rem", OP_REM},   {"ret", OP_EXIT},  {"rsqrt", OP_RSQRT},
    {"sad", OP_SAD},   {"selp", OP_SELP},             {"setp", OP_SETP}, {"shfl", OP_SHFL}, {"shl", OP_SHL},
    {"shr", OP_SHR},   {"sin", OP_SIN},               {"sqrt", OP_SQRT}, {"st", OP_ST},     {"sub", OP_SUB},
    {"tanh", OP_TANH}, {"trap", OP_TRAP},             {"vote", OP_VOTE}, {"xor", OP_XOR},   {"nanosleep", OP_MEMBAR},
};

struct word {
    const char *name;
    int value;
};

static const struct word compares[] = {
    {"eq", COMPARE_EQ},   {"ne", COMPARE_NE},   {"lt", COMPARE_LT},   {"le", COMPARE_LE},   {"gt", COMPARE_GT},
    {"ge", COMPARE_GE},   {"lo", COMPARE_LT},   {"ls", COMPARE_LE},   {"hi", COMPARE_GT},   {"hs", COMPARE_GE},
    {"equ", COMPARE_EQU}, {"neu", COMPARE_NEU}, {"ltu", COMPARE_LTU}, {"leu", COMPARE_LEU}, {"gtu", COMPARE_GTU},
    {"geu", COMPARE_GEU}, {"num", COMPARE_NUM}, {"nan", COMPARE_NAN}, {NULL, 0},
};
static const struct word actions[] = {
    {"add", ACTION_ADD},   {"and", ACTION_AND},   {"or", ACTION_OR},   {"xor", ACTION_XOR}, {"min", ACTION_MIN},
    {"max", ACTION_MAX},   {"exch", ACTION_EXCH}, {"cas", ACTION_CAS}, {"inc", ACTION_INC}, {"dec", ACTION_DEC},
    {"up", ACTION_UP},     {"down", ACTION_DOWN}, {"bfly", ACTION_BFLY}, {"idx", ACTION_IDX}, {"all", ACTION_ALL},
    {"any", ACTION_ANY},   {"ballot", ACTION_BALLOT}, {NULL, 0},
};
static const struct word spaces[] = {
    {"global", SPACE_GLOBAL}, {"const", SPACE_GLOBAL}, {"shared", SPACE_SHARED}, {"shared::cta", SPACE_SHARED},
    {"local", SPACE_LOCAL},   {"param", SPACE_PARAM},  {NULL, 0},
};
static const struct word halves[] = {{"lo", HALF_LO}, {"hi", HALF_HI}, {"wide", HALF_WIDE}, {NULL, 0}};
static const struct word roundings[] = {
    {"rn", ROUND_NEAREST}, {"rz", ROUND_ZERO},   {"rm", ROUND_DOWN},  {"rp", ROUND_UP}, {"rni", ROUND_NEAREST},
    {"rzi", ROUND_ZERO},   {"rmi", ROUND_DOWN},  {"rpi", ROUND_UP},   {NULL, 0},
};
/* Modifiers that change nothing for an interpreter that runs one thread at a time with full precision. */
static const struct word ignored[] = {
    {"approx", 0}, {"full", 0}, {"ftz", 0},     {"sync", 0},    {"aligned", 0}, {"uni", 0},     {"gpu", 0},
    {"cta", 0},    {"sys", 0},  {"relaxed", 0}, {"acquire", 0}, {"release", 0}, {"acq_rel", 0}, {"sc", 0},
    {"volatile", 0}, {"nc", 0}, {"ca", 0},      {"cg", 0},      {"cs", 0},      {"lu", 0},      {"cv", 0},
    {"wb", 0},     {"wt", 0},   {"v2", 0},      {"v4", 0},      {"gl", 0},      {"weak", 0},    {"to", 0},
    {"sat", 0},    {"u32", 0},  {"L1::no_allocate", 0}, {"L2::128B", 0}, {NULL, 0},
};

static bool lookup(const struct word *words, const char *name, int *value)
{
    for (; words->name; words++)
        if (strcmp(words->name, name) == 0) {
            *value = words->value;
            return true;
        }
    return false;
}

/* True where the modifier is known. */
static bool modify(struct ptx_instruction *instruction, const char *name)
{
    enum ptx_opcode opcode = instruction->opcode;
    enum ptx_type type = ptx_type_of(name);
    int value;

    if (type != PTX_NONE) {
        if (instruction->type == PTX_NONE)
            instruction->type = type;
        else
            instruction->from = type;
        return true;
    }
    if (opcode == OP_BAR && strcmp(name, "warp") == 0) {
        instruction->action = ACTION_ALL;
    } else if (opcode == OP_SETP && lookup(compares, name, &value)) {
        instruction->compare = (uint8_t)value;
    } else if ((opcode == OP_SETP || opcode == OP_ATOM || opcode == OP_RED || opcode == OP_SHFL || opcode == OP_VOTE) && lookup(actions, name, &value)) {
        instruction->action = (uint8_t)value;
    } else if (lookup(spaces, name, &value)) {
        instruction->space = (uint8_t)value;
    } else if ((opcode == OP_MUL || opcode == OP_MAD) && lookup(halves, name, &value)) {
        instruction->half = (uint8_t)value;
    } else if (lookup(roundings, name, &value)) {
        instruction->rounding = (uint8_t)value;
        instruction->to_integer = name[2] == 'i';
    } else if (!lookup(ignored, name, &value)) {
        return false;
    }
    instruction->saturate |= strcmp(name, "sat") == 0;
    instruction->to |= strcmp(name, "to") == 0;
    return true;
}

static bool parse_opcode(struct ptx_instruction *instruction, char *text)
{
    char *rest = text, *part = strsep(&rest, ".");

    for (size_t i = 0; i < sizeof(opcodes) / sizeof(opcodes[0]); i++)
        if (strcmp(opcodes[i].name, part) == 0)
            instruction->opcode = (uint8_t)opcodes[i].opcode;
    while (rest) {
        part = strsep(&rest, ".");
        /* An unknown modifier may change the meaning. */
        if (!modify(instruction, part))
            instruction->opcode = OP_UNSUPPORTED;
    }
    return instruction->opcode != OP_UNSUPPORTED;
}

static int parse_special(const char *name, size_t length)
{
    static const char *const names[SPECIAL_NONE] = {
        "%tid.x", "%tid.y", "%tid.z", "%ntid.x", "%ntid.y", "%ntid.z", "%ctaid.x", "%ctaid.y", "%ctaid.z",
        "%nctaid.x", "%nctaid.y", "%nctaid.z", "%laneid", "%warpid", "%clock", "%clock64", "%globaltimer", "%smid",
        "%lanemask_lt", "%lanemask_le", "%lanemask_eq", "%dynamic_smem_size",
    };

    for (int i = 0; i < SPECIAL_NONE; i++)
        if (strlen(names[i]) == length && strncmp(names[i], name, length) == 0)
            return i;
    return SPECIAL_NONE;
}

static uint64_t float_bits(enum ptx_type type, double value)
{
    float narrow = (float)value;
    uint32_t bits;
    uint64_t wide;

    if (type == PTX_F32) {
        memcpy(&bits, &narrow, sizeof(bits));
        return bits;
    }
    memcpy(&wide, &value, sizeof(wide));
    return wide;
}

/* Integers in all bases, exact floats (0f3F800000, 0d...), decimal floats. */
static bool parse_number(const char *text, size_t length, enum ptx_type type, uint64_t *value)
{
    char copy[64], *end;
    bool negative = text[0] == '-';

    if (length >= sizeof(copy))
        return false;
    memcpy(copy, text, length);
    copy[length] = 0;
    if (strncasecmp(copy, "0f", 2) == 0 || strncasecmp(copy, "0d", 2) == 0) {
        *value = strtoull(copy + 2, &end, 16);
        return *end == 0 && end > copy + 2;
    }
    if (strpbrk(copy, ".") || ((type == PTX_F32 || type == PTX_F64) && !strpbrk(copy, "xX"))) {
        *value = float_bits(type, strtod(copy, &end));
        return *end == 0;
    }
    *value = strtoull(copy + negative, &end, 0);
    if (*end == 'U' || *end == 'u')
        end++;
    if (negative)
        *value = -*value;
    return *end == 0 && end > copy + negative;
}

static bool identifier(char c) { return isalnum((unsigned char)c) || c == '_' || c == '$' || c == '%'; }

static bool parse_simple(struct ptx_parser *parser, const char *text, size_t length, enum ptx_type type,
                         struct ptx_operand *operand)
{
    operand->index = ptx_register(parser, text, length);
    if (operand->index >= 0) {
        operand->kind = OPERAND_REGISTER;
        return true;
    }
    operand->index = parse_special(text, length);
    if (operand->index != SPECIAL_NONE) {
        operand->kind = OPERAND_SPECIAL;
        return true;
    }
    operand->kind = OPERAND_IMMEDIATE;
    operand->index = -1;
    if (isdigit((unsigned char)text[0]) || text[0] == '-' || text[0] == '+')
        return parse_number(text, length, type, &operand->value) || ptx_fail(parser, "a number is expected, not", text);
    if (length == 7 && strncmp(text, "WARP_SZ", 7) == 0) {
        operand->value = 32;
        return true;
    }
    return ptx_symbol(parser, text, length, &operand->value) || ptx_fail(parser, "unknown name:", text);
}

/* The name of a variable. */
static bool parse_variable(struct ptx_parser *parser, const char *text, struct ptx_operand *operand)
{
    operand->kind = OPERAND_IMMEDIATE;
    return ptx_symbol(parser, text, strlen(text), &operand->value) || ptx_fail(parser, "unknown variable:", text);
}

/* [register], [register+number], [name+number] */
static bool parse_address(struct ptx_parser *parser, const char *text, struct ptx_operand *operand)
{
    size_t length = 0;
    uint64_t offset = 0;

    while (identifier(text[length]) || text[length] == '.')
        length++;
    if (!parse_simple(parser, text, length, PTX_U64, operand))
        return false;
    if (text[length]) {
        const char *number = text + length + (text[length] == '+');
        if (!parse_number(number, strlen(number), PTX_U64, &offset))
            return ptx_fail(parser, "an address is expected, not", text);
    }
    if (operand->kind == OPERAND_SPECIAL)
        return ptx_fail(parser, "an address is expected, not", text);
    operand->kind = OPERAND_ADDRESS;
    operand->value += offset;
    return true;
}

static bool parse_vector(struct ptx_parser *parser, char *text, struct ptx_instruction *instruction)
{
    char *rest = text, *part;

    while ((part = strsep(&rest, ","))) {
        int index = strcmp(part, "_") == 0 ? -1 : ptx_register(parser, part, strlen(part));
        if (instruction->vector_size == 4 || (index < 0 && strcmp(part, "_") != 0))
            return ptx_fail(parser, "wrong vector:", part);
        instruction->vector[instruction->vector_size++] = index;
    }
    return true;
}

static bool parse_operand(struct ptx_parser *parser, struct ptx_instruction *instruction, char *text,
                          struct ptx_operand *operand)
{
    size_t length = strlen(text);
    char *bar;

    /* Of a conversion, the source has the second type. */
    enum ptx_type type = instruction->opcode == OP_CVT && instruction->from ? instruction->from : instruction->type;
    if (!length)
        return ptx_fail(parser, "an operand is missing", "");
    if ((text[0] == '[' && text[length - 1] == ']') || (text[0] == '{' && text[length - 1] == '}')) {
        bool address = text[0] == '[';
        text[length - 1] = 0;
        if (address)
            return parse_address(parser, text + 1, operand);
        operand->kind = OPERAND_VECTOR;
        return parse_vector(parser, text + 1, instruction);
    }
    if (instruction->opcode == OP_BRA) {
        instruction->target = ptx_label(parser, text, length);
        operand->kind = OPERAND_NONE;
        return true;
    }
    if (text[0] == '!') {
        operand->negated = true;
        return parse_simple(parser, text + 1, length - 1, type, operand);
    }
    bar = strchr(text, '|');
    if (bar) {
        instruction->second = ptx_register(parser, bar + 1, strlen(bar + 1));
        if (instruction->second < 0)
            return ptx_fail(parser, "unknown name:", bar + 1);
        length = (size_t)(bar - text);
    }
    return parse_simple(parser, text, length, type, operand);
}

/* call (result), function, (parameter, ...): only of the functions by which kernels print. Parameters and the result are
 * variables of the caller; their addresses become operands, that of a result behind those of the parameters. */
static bool parse_call(struct ptx_parser *parser, char *text, struct ptx_instruction *instruction)
{
    static const struct {
        const char *name;
        enum ptx_action action;
        int parameters;
    } functions[] = {{"vprintf", ACTION_PRINT, 2}, {"__assertfail", ACTION_ASSERT, 5}};
    char *result = NULL, *name, *part;
    int count = 0, wanted = -1;

    if (text && *text == '(') {
        result = text + 1;
        text = strchr(text, ')');
        if (!text || text[1] != ',')
            return ptx_fail(parser, "a function is expected behind", result);
        *text = 0;
        text += 2;
    }
    name = strsep(&text, ",");
    for (size_t i = 0; name && i < sizeof(functions) / sizeof(functions[0]); i++)
        if (strcmp(functions[i].name, name) == 0) {
            instruction->action = (uint8_t)functions[i].action;
            wanted = functions[i].parameters;
        }
    if (wanted < 0) {
        instruction->opcode = OP_UNSUPPORTED;
        return true;
    }
    if (!text || *text != '(' || text[strlen(text) - 1] != ')')
        return ptx_fail(parser, "parameters are missing:", name);
    text[strlen(text) - 1] = 0;
    for (text++; (part = strsep(&text, ",")) && count < wanted; count++)
        if (!parse_variable(parser, part, &instruction->operands[count]))
            return false;
    if (part || count < wanted || (result && instruction->action != ACTION_PRINT))
        return ptx_fail(parser, "wrong number of parameters or results:", name);
    return !result || parse_variable(parser, result, &instruction->operands[count]);
}

static void remove_spaces(char *text)
{
    char *to = text;

    for (; *text; text++)
        if (!isspace((unsigned char)*text))
            *to++ = *text;
    *to = 0;
}

/* Cuts at the next comma outside of brackets. */
static char *next_operand(char **rest)
{
    char *text = *rest, *at;
    int depth = 0;

    if (!text)
        return NULL;
    for (at = text; *at && (*at != ',' || depth); at++)
        depth += (*at == '{' || *at == '[') - (*at == '}' || *at == ']');
    *rest = *at ? at + 1 : NULL;
    *at = 0;
    return text;
}

bool ptx_parse_instruction(struct ptx_parser *parser, char *text, struct ptx_instruction *instruction)
{
    char *opcode, *rest, *part;
    int count = 0;

    *instruction = (struct ptx_instruction){.guard = -1, .second = -1, .target = -1};
    if (text[0] == '@') {
        bool negated = text[1] == '!';
        char *name = text + 1 + negated;
        text = name + strcspn(name, " \t\r\n");
        instruction->guard = ptx_register(parser, name, (size_t)(text - name));
        instruction->guard_negated = negated;
        if (instruction->guard < 0)
            return ptx_fail(parser, "unknown predicate:", name);
        text += strspn(text, " \t\r\n");
    }
    opcode = text;
    rest = text + strcspn(text, " \t\r\n");
    if (*rest)
        *rest++ = 0;
    else
        rest = NULL;
    if (!parse_opcode(instruction, opcode))
        return true;
    if (rest)
        remove_spaces(rest);
    if (instruction->opcode == OP_CALL)
        return parse_call(parser, rest, instruction);
    while (rest && *rest && (part = next_operand(&rest))) {
        if (count == 5)
            return ptx_fail(parser, "too many operands:", part);
        if (!parse_operand(parser, instruction, part, &instruction->operands[count++]))
            return false;
    }
    return true;
}
